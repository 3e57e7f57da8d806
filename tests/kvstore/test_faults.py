"""Workers and servers that die, stop or come back: nothing torn or doubled, and a line of who waits for whom."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch
from a_server import ServerProcess
from servers import SECRET, Serving, serving, together

from shoal.kvstore.client import Client, RolledBack, ServerError
from shoal.kvstore.layout import Layout, Limits, Terms
from shoal.kvstore.positions import Positions
from shoal.kvstore.updater import describe
from shoal.kvstore.wire import Header, Op

SIZE = 10_000
PATIENT = Limits(start_s=60.0, step_s=60.0, silence_s=10.0, return_s=60.0)
"""For servers that are started again, on a busy machine."""
ASYNC = Terms(mode="async")


def start(client: Client, terms: Terms, momentum: float = 0.0) -> torch.Tensor:
    tensors = [torch.zeros(SIZE)]
    description = describe(torch.optim.SGD(tensors, lr=1.0, momentum=momentum), tensors)
    flat = torch.zeros(SIZE)
    client.init(flat, Layout.of([("a", tensors[0])]), description, terms)
    return flat


def die(client: Client) -> None:
    """As by kill -9: connections break, and nothing is said."""
    for link in client._links:
        link.interrupt()


def clients(there: Serving, count: int, terms: Terms) -> list[tuple[Client, torch.Tensor]]:
    def one(rank):
        client = there.client(rank, count)
        return client, start(client, terms)

    return together(count, one)


@pytest.mark.parametrize("servers", [1, 2])
def test_a_dead_worker_ends_a_synchronous_round(servers, lag):
    with serving(3, servers) as there:
        (one, _), (two, _), (three, _) = clients(there, 3, Terms())
        three.push(0, torch.ones(SIZE))
        began = lag.begin()
        threading.Timer(0.2, die, (three,)).start()

        def work(rank):
            client = (one, two)[rank]
            client.push(0, torch.ones(SIZE))
            with pytest.raises(ServerError, match=r"worker 2 on 127.0.0.1 is gone at step 812"):
                client.commit(812, lr=1.0)

        together(2, work)
        assert time.monotonic() - began < lag.allows(5.0)
        there.end()
        assert set(there.codes.values()) == {1}


@pytest.mark.parametrize("servers", [1, 2])
def test_or_the_others_do_the_same_batch_again(servers):
    with serving(3, servers) as there:
        both = clients(there, 3, Terms(on_dead="continue"))
        die(both.pop()[0])

        def work(rank):
            client, flat = both[rank]
            client.push(0, torch.ones(SIZE) * 100)
            end, times = client.commit(7, lr=1.0), 1
            while end.redo:
                assert not end.applied and times < 4
                client.push(0, torch.ones(SIZE))
                end, times = client.commit(7, lr=1.0), times + 1
            assert end.applied and end.live == (0, 1) and client.num_dead() == 1
            assert client.pull(flat) == 1 and (flat == -2).all()
            client.push(0, torch.ones(SIZE))
            assert client.commit(8, lr=1.0).applied
            client.close()

        together(2, work)
        there.end()
        assert set(there.codes.values()) == {0}


def test_a_worker_that_leaves_early_is_not_waited_for():
    with serving(2) as there:
        (one, flat), (two, _) = clients(there, 2, Terms())
        two.close()
        one.push(0, torch.ones(SIZE))
        end = one.commit(0, lr=1.0)
        if end.redo:
            one.push(0, torch.ones(SIZE))
            end = one.commit(0, lr=1.0)
        assert end.applied and one.pull(flat) == 1 and one.num_dead() == 0
        one.close()


def test_a_worker_that_stands_still_is_named():
    limits = Limits(start_s=1.0, step_s=1.0, return_s=1.0)
    with serving(2, limits=limits) as there:
        (one, _), (two, _) = clients(there, 2, Terms())
        with pytest.raises(
            ServerError,
            match=r"worker 0 on \S+ wait for worker 1 on \S+, which is connected, but has not reached step 5",
        ):
            one.commit(5, lr=1.0)
        del two


def test_a_worker_that_never_comes_is_named():
    with (
        serving(2, limits=Limits(start_s=0.5, step_s=9.0)) as there,
        pytest.raises(ServerError, match="worker 1, which has never come"),
    ):
        start(there.client(0, 2), Terms())


def test_a_server_that_never_comes_is_named():
    with pytest.raises(ServerError, match=r"worker 0: no server 0 within 0.3 s: 127.0.0.1:1"):
        Client(["127.0.0.1:1"], 0, 1, SECRET, limits=Limits(start_s=0.3))


def test_asynchronous_workers_go_on_and_half_a_push_is_none(lag):
    with serving(2) as there:
        (one, flat), (two, _) = clients(there, 2, ASYNC)
        wire = two._links[0]._wire
        two.push(0, torch.ones(SIZE) * 1000)
        time.sleep(0.1)
        two._shared_memory = False
        wire._connection.sendall(Header(Op.PUSH, count=SIZE, nbytes=4 * SIZE).pack() + bytes(100))
        die(two)
        longest = 0.0
        lag.begin()
        for step in range(20):
            began = time.monotonic()
            one.push(0, torch.ones(SIZE))
            assert one.commit(step, lr=1.0).applied
            assert one.pull(flat) == step + 1 and (flat == -(step + 1)).all()
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.1)
        assert longest < lag.allows(1.0)
        assert any("worker 1 on 127.0.0.1 is gone" in line for line in there.told)
        one.close()
        there.end()
        assert there.codes == {0: 0}


@pytest.mark.parametrize(("shared", "servers"), [(True, 1), (False, 1), (True, 2), (False, 3)])
def test_asynchronous_pushes_count_once_each(shared, servers):
    pushes = 30
    with serving(3, servers) as there:

        def work(rank):
            client = there.client(rank, 3, shared_memory=shared)
            flat = start(client, ASYNC)
            worst = 0
            for step in range(pushes):
                client.push(0, torch.full((SIZE,), 10.0**rank))
                end = client.commit(step, lr=1.0)
                worst = max(worst, end.staleness)
                client.pull(flat)
                assert servers > 1 or (flat == flat[0]).all(), "torn"
            client.barrier()
            client.pull(flat)
            client.close()
            return flat, worst

        results = together(3, work)
        for flat, _ in results:
            assert (flat == -111.0 * pushes).all()
        assert servers > 1 or max(worst for _, worst in results) > 0


def test_a_stale_push_has_a_smaller_rate():
    with serving(3) as there:
        one, two, three = clients(there, 3, Terms(mode="async", damped_beyond=2))
        for step in range(9):
            two[0].push(0, torch.zeros(SIZE))
            assert two[0].commit(step, lr=1.0).staleness == step
        one[0].push(0, torch.ones(SIZE))
        end = one[0].commit(0, lr=1.0)
        one[0].pull(one[1])
        assert end.staleness == 9
        assert one[1][0].item() == pytest.approx(-1 / 5)  # five batches of two pushes
        for client, _ in (one, two, three):
            client.close()


def test_positions_are_handed_out_once_or_again():
    with serving(3) as there:
        (one, _), (two, _), (three, _) = clients(there, 3, ASYNC)
        assert [one.take(4), two.take(4), three.take(4)] == [0, 1, 2]
        one.push(0, torch.ones(SIZE))
        one.commit(0, lr=1.0)
        two.close()
        die(three)
        until = time.monotonic() + 60
        while one.num_dead() == 0 or not any("is gone" in line for line in there.told):
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(0.2)
        assert [one.take(4) for _ in range(4)] == [1, 2, 3, -1]
        assert one.take(5) == 4
        one.seek(2)
        assert one.take(4) == 2
        one.close()


def test_positions_survive_a_snapshot():
    positions = Positions()
    assert [positions.take(0, 9, held) for held in range(3)] == [0, 1, 2]
    assert positions.finish(0, 0) and not positions.finish(0, 0)
    positions.give_back(0)
    assert positions.take(1, 9) == 1
    state = positions.state()
    assert [positions.take(0, 9, held) for held in range(3)] == [2, 3, 4]
    assert all(positions.finish(0, position) for position in (2, 3)) and positions.finish(1, 1)

    other = Positions()  # of the server's next life; 0 works on 4, the rest that came after the snapshot is lost
    other.load(state)
    assert other.take(2, 9) == 2
    assert other.finish(0, 4) and not other.finish(0, 4) and not other.finish(0, 2)
    assert other.take(1, 9, 0) == 1  # lost, so again
    assert [other.take(0, 6, held) for held in range(3)] == [3, 5, None]


def test_a_connection_that_breaks_is_made_anew():
    with serving(2) as there:
        both = clients(there, 2, Terms())

        def work(rank):
            client, flat = both[rank]
            for step in range(10):
                client.push(0, torch.ones(SIZE))
                if step % 3 == rank:
                    client._links[0]._wire.shutdown()
                assert client.commit(step, lr=1.0).applied
                if step % 4 == rank:
                    client._links[0]._wire.shutdown()
                assert client.pull(flat) == step + 1 and (flat == -2 * (step + 1)).all()
                assert client.side(torch.ones(1, dtype=torch.int64)).item() == 2
            client.close()

        together(2, work)


def restart(server: ServerProcess, folder: Path, *args: str) -> ServerProcess:
    server.kill()
    return ServerProcess(folder, 2, *args, address=server.address)


@pytest.mark.slow
def test_an_asynchronous_server_goes_on_from_its_snapshot(tmp_path, lag):
    args = ("--snapshot", str(tmp_path / "snapshot"), "--snapshot-s", "0.1")
    told: list[str] = []
    server = ServerProcess(tmp_path, 2, *args)
    try:

        def work(rank):
            client = Client(
                [server.address], rank, 2, SECRET, limits=PATIENT, tell=told.append, shared_memory=bool(rank)
            )
            return client, start(client, ASYNC, momentum=0.5)

        both = together(2, work)
        counts = [0, 0]
        end = threading.Event()

        def train(rank):
            client, flat = both[rank]
            while not end.is_set():
                client.push(0, torch.ones(SIZE))
                assert client.commit(counts[rank], lr=1.0).applied
                counts[rank] += 1
                client.pull(flat)
                assert (flat == flat[0]).all(), "torn"
                time.sleep(0.01)

        threads = [threading.Thread(target=train, args=(rank,), daemon=True) for rank in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        server = restart(server, tmp_path, *args)
        bound = lag.begin()
        before = list(counts)
        while min(now - then for now, then in zip(counts, before, strict=True)) < 5:
            assert time.monotonic() < bound + 60, told
            time.sleep(0.01)
        assert time.monotonic() - bound < lag.allows(2.0)
        end.set()
        for thread in threads:
            thread.join()
        assert any("goes on from its snapshot" in line for line in server.lines)
        lost = [line for line in told if "is back with version" in line]
        assert len(lost) == 2
        versions = [client.pull(flat) for client, flat in both]
        state = both[0][0].state()
        assert versions[0] <= sum(counts) and state["state"][0]["momentum_buffer"][0] > 0
        for client, _ in both:
            client.close()
        assert server.process.wait(60) == 0
    finally:
        server.__exit__()


@pytest.mark.slow
def test_synchronous_workers_all_roll_back_together(tmp_path):
    server, other = ServerProcess(tmp_path, 2), ServerProcess(tmp_path, 2, "--rank", "1", "-s", "2")
    server.kill()
    server = ServerProcess(tmp_path, 2, "-s", "2", address=server.address)
    reached = threading.Event()
    try:

        def work(rank):
            client = Client([server.address, other.address], rank, 2, SECRET, limits=PATIENT)
            flat = start(client, Terms(), momentum=0.5)
            kept = state = None
            step, rolled = 0, 0
            while step < 60:
                try:
                    if step == 20:
                        kept, state = flat.clone(), client.state()
                        client.barrier()
                    client.push(0, torch.ones(SIZE))
                    assert client.commit(step, lr=0.5**step).applied
                    client.pull(flat)
                    step += 1
                    time.sleep(0.03)
                    if step == 35:
                        reached.set()
                except RolledBack:
                    rolled += 1
                    step = 20
                    flat.copy_(kept)
                    client.load(flat, state)
            client.barrier()
            client.close()
            return flat, rolled

        def kill():
            nonlocal server
            reached.wait(60)
            server.kill()
            server = ServerProcess(tmp_path, 2, "-s", "2", address=server.address)

        timer = threading.Thread(target=kill)
        timer.start()
        results = together(2, work, 90.0)
        timer.join()
        expected, momentum = 0.0, 0.0
        for step in range(60):
            momentum = momentum * 0.5 + 2
            expected -= momentum * 0.5**step
        for flat, rolled in results:
            assert rolled == 1
            torch.testing.assert_close(flat, torch.full((SIZE,), expected))
        assert server.process.wait(60) == 0 and other.process.wait(60) == 0
    finally:
        server.__exit__()
        other.__exit__()


@pytest.mark.parametrize("shared", [True, False], ids=["memory", "tcp"])
def test_who_missed_a_servers_restart_rolls_back_with_the_others(shared):
    """Between two pulls: one worker finds the second server changed, the other meets the first one in a sum."""
    with serving(2, 2) as there:

        def begin(rank):
            client = there.client(rank, 2, shared_memory=shared)
            flat = start(client, Terms(), momentum=0.5)
            for step in range(3):
                client.push(0, torch.ones(SIZE))
                assert client.commit(step, lr=1.0).applied
                client.pull(flat)
                if step == 0:
                    kept, state = flat.clone(), client.state()
                    client.barrier()
            return client, flat, kept, state

        both = together(2, begin)
        expected = both[0][1].clone()
        there.restart(1)
        for _ in range(2):  # the second time the first server has gone through a rollback before

            def work(rank):
                client, flat, kept, state = both[rank]
                with pytest.raises(RolledBack):
                    if rank == 0:
                        client.state()
                    client.side(torch.ones(3 + rank, dtype=torch.float64))
                assert client.side(torch.ones(1, dtype=torch.int64)).item() == 2
                flat.copy_(kept)
                client.load(flat, state)
                for step in (1, 2):
                    client.push(0, torch.ones(SIZE))
                    assert client.commit(step, lr=1.0).applied
                    client.pull(flat)
                client.barrier()
                return flat

            for flat in together(2, work):
                assert torch.equal(flat, expected)
            there.restart(1)
        for client, *_ in both:
            client.close()


def test_a_server_that_is_started_again_does_not_wait_for_the_dead(lag):
    with serving(3) as there:
        both = clients(there, 3, Terms(on_dead="continue"))
        die(both.pop()[0])

        def commit(client):
            client.push(0, torch.ones(SIZE))
            while client.commit(7, lr=1.0).redo:
                client.push(0, torch.ones(SIZE))

        together(2, lambda rank: commit(both[rank][0]))
        there.restart(0)

        def work(rank):
            client, flat = both[rank]
            with pytest.raises(RolledBack):
                client.barrier()
            client.load(flat.zero_(), None)
            commit(client)
            client.pull(flat)
            assert (flat == -2).all() and client.num_dead() == 1
            client.close()

        began = lag.begin()
        together(2, work)
        assert time.monotonic() - began < lag.allows(5.0)
        there.end()
        assert there.codes == {0: 0}
