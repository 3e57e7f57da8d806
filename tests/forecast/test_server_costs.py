"""Parameter servers: what goes through the busiest port, in closed form; and asynchronous workers event by event."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.forecast.asynchronous import Queue, play
from shoal.forecast.calibration import Calibration, Network
from shoal.forecast.servers import Ports, sync_s


def calibration(**known: object) -> Calibration:
    held: dict = {"source": "", "images_per_epoch": 1, "parameters": 1, "gradient_bytes": 1_000_000, "image_s": 0.01}
    return Calibration(**{**held, **known})


FAST = Network(byte_s=0.0)


def test_ports_by_hand() -> None:
    assert Ports.of(2, Network(byte_s=1.0, servers=1)) == Ports(wire=1.0, served=1.0, shared=1.0)
    assert Ports.of(4, Network(byte_s=1.0, servers=4)) == Ports(wire=0.75, served=0.75, shared=0.25)
    # Three of four hosts are elsewhere; each sends its whole gradient to the one server.
    assert Ports.of(4, Network(byte_s=1.0, servers=1)).wire == 3.0
    # All on one host: nothing leaves it.
    assert Ports.of(8, Network(byte_s=1.0, servers=2, per_host=8)) == Ports(wire=0.0, served=0.0, shared=4.0)
    # Eight workers send half of what they have to the other host, which takes as much in.
    assert Ports.of(16, Network(byte_s=1.0, servers=2, per_host=8)).wire == 4.0


def test_a_synchronous_round_by_hand() -> None:
    known = calibration(call_s=1e-4)
    network = Network(byte_s=1e-8, latency_s=1e-3)
    assert sync_s(2, known, network) == pytest.approx(3 * (1e-4 + 2e-3) + 2 * 1e6 * 1e-8)


def test_a_push_leaves_in_pieces_while_the_backward_pass_goes_on() -> None:
    eight = [(4 << 20, 0.5), (4 << 20, 1.0)]
    known, network = calibration(gradient_bytes=8 << 20, gradients=eight), Network(byte_s=1e-8)
    one = 1e-8 * (4 << 20)
    assert sync_s(2, known, network, shard_s=1.0) == pytest.approx(one + 2 * one)
    assert sync_s(2, known, network, shard_s=one) == pytest.approx(1.5 * one + 2 * one)
    assert sync_s(2, known, network, shard_s=1.0, sums=2) == pytest.approx(2 * 2 * one + 2 * one)  # all at the end


def test_more_servers_help_until_there_is_one_on_every_host() -> None:
    times = [sync_s(16, calibration(), Network(byte_s=1e-8, servers=servers)) for servers in (1, 2, 4, 8, 16)]
    assert times == sorted(times, reverse=True)
    assert times[0] / times[-1] == pytest.approx(16, rel=0.01)


def test_one_asynchronous_worker_is_the_sum_of_its_parts() -> None:
    known = calibration(call_s=1e-3, share_byte_s=1e-9, update_s=2e-3)  # the update is the server's
    played = play(10, 1, known, FAST)
    assert played.cycle_s == pytest.approx(0.1 + 3e-3 + 2e-3, rel=1e-6)
    assert played.staleness == 0


def test_workers_that_meet_nowhere_add_up() -> None:
    one = play(10, 1, calibration(), FAST).shards_per_s
    played = play(10, 8, calibration(), FAST)
    assert played.shards_per_s == pytest.approx(8 * one, rel=0.03)
    assert played.staleness == pytest.approx(7, abs=0.3)


def test_a_slow_worker_costs_only_its_own_part() -> None:
    one = play(10, 1, calibration(), FAST).shards_per_s
    slowed = play(10, 4, calibration(), Network(byte_s=0.0, slow=4.0)).shards_per_s
    assert slowed == pytest.approx(3.25 * one, rel=0.03)


def test_a_full_port_bounds_the_rate_whatever_the_workers() -> None:
    network = Network(byte_s=1e-7)  # a gradient takes 0.1 s through the server's port
    rates = [play(1, n, calibration(), network).shards_per_s for n in (16, 64)]
    beside = 100  # shards a second of who lives with the server and needs no port
    assert rates == pytest.approx([10 + beside, 10 + beside], rel=0.02)


def test_who_lives_beside_the_server_is_not_held_up_by_the_other_ones_bytes() -> None:
    """One computes without a pause, the other's gradients and weights are on their way for 2 s."""
    network = Network(byte_s=1e-6)
    played = play(10, 2, calibration(serve_byte_s=1e-9), network)
    assert played.shards_per_s == pytest.approx(1 / 0.1 + 1 / 2.1, rel=0.02)


def test_a_meeting_waits_for_the_slow_one() -> None:
    """A worker with a cycle of 2.1 s has on the average half of it to go when there is no shard for the other one any
    more; the shard that it does meanwhile is no loss."""
    network, between = Network(byte_s=1e-6), 1000
    alone = play(10, 2, calibration(jitter=0.1), network)
    meeting = play(10, 2, calibration(jitter=0.1), network, between=between)
    lost = between / meeting.shards_per_s - between / alone.shards_per_s
    assert lost == pytest.approx(2.1 / 2 - 1 / alone.shards_per_s, rel=0.1)
    assert meeting.waiting_s == pytest.approx(2 * lost / between)


def test_equals_lose_nothing_by_meeting() -> None:
    played = play(10, 4, calibration(jitter=0.2), FAST, between=40)
    assert played.waiting_s < 0.01 * played.cycle_s


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=30))
def test_a_queue_serves_one_at_a_time_and_wastes_no_gap(asked: list[tuple[int, int]]) -> None:
    queue, taken = Queue(), set()
    for ready, seconds in asked:
        begin = ready
        while taken & set(range(begin, begin + seconds)):
            begin += 1
        assert queue.use(ready, seconds, now=0) == begin + seconds
        taken |= set(range(begin, begin + seconds))


def test_a_queue_forgets_what_is_over() -> None:
    queue = Queue()
    assert [queue.use(when, 1.0, now=when) for when in (0.0, 0.5, 5.0)] == [1.0, 2.0, 6.0]


def test_the_same_seed_plays_the_same() -> None:
    known = calibration(jitter=0.2)
    assert play(10, 4, known, FAST) == play(10, 4, known, FAST) != play(10, 4, known, FAST, seed=1)
