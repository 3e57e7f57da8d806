"""Rounds over servers: the mathematics of one process, whatever the transport and the number of workers and servers."""

from __future__ import annotations

import pytest
import torch
from servers import serving, together

from shoal.base.tree import TreeSum, cover
from shoal.kvstore.layout import Layout, Terms
from shoal.kvstore.updater import describe

SHAPES = [(5, 3), (5,), (7, 5), (1,), (11, 2, 3)]


def parameters(kind: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=kind) for shape in SHAPES]


def optimizer_of(tensors: list[torch.Tensor]) -> torch.optim.Optimizer:
    groups = [{"params": tensors[::2]}, {"params": tensors[1::2], "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True)


def layout_of(tensors: list[torch.Tensor], whole: bool = False) -> Layout:
    return Layout.of([(str(number), tensor) for number, tensor in enumerate(tensors)], whole=whole)


def flat_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def gradient(step: int, rank: int, size: int, kind: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * step + rank), dtype=kind)


def one_process(ranks: int, steps: int, clip_norm: float | None = None) -> tuple[torch.Tensor, dict]:
    tensors = parameters()
    optimizer = optimizer_of(tensors)
    for step in range(steps):
        total = sum(gradient(step, rank, len(flat_of(tensors))) for rank in range(ranks))
        assert isinstance(total, torch.Tensor)
        if clip_norm is not None:
            total = total * (clip_norm / (total.norm() + 1e-6)).clamp(max=1.0)
        for tensor, piece in zip(tensors, total.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.grad = piece.view(tensor.shape)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (step + 1)
        optimizer.step()
    return flat_of(tensors), optimizer.state_dict()


@pytest.mark.parametrize("shared", [True, False], ids=["memory", "tcp"])
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 1), (3, 2), (1, 3)])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_synchronous_rounds_are_those_of_one_process(workers, servers, shared, clip_norm):
    steps = 4
    expected, expected_state = one_process(workers, steps, clip_norm)
    with serving(workers, servers) as there:

        def work(rank):
            tensors = parameters()
            layout, flat = layout_of(tensors), flat_of(tensors)
            if rank:
                flat.zero_()
            client = there.client(rank, workers, shared_memory=shared)
            assert client.init(flat, layout, describe(optimizer_of(tensors), tensors), Terms()) == 0
            assert torch.equal(flat, flat_of(tensors))
            for step in range(steps):
                own = gradient(step, rank, layout.size)
                if step % 2:
                    client.gradient.copy_(own)
                    client.push(0, client.gradient)
                else:
                    client.push(30, own[30:])
                    client.push(0, own[:30])
                end = client.commit(step, lr=0.1 / (step + 1), ask=rank, clip_norm=clip_norm)
                assert end.applied and end.asked == workers - 1 and end.live == tuple(range(workers))
                total = sum(gradient(step, other, layout.size) for other in range(workers))
                assert end.norm == pytest.approx(total.norm().item(), rel=1e-12)
                assert client.pull(flat) == step + 1 == end.version
            state = client.state() if rank == 0 else None
            client.barrier()
            client.close()
            return flat, state

        results = together(workers, work)
        there.end()
        assert there.codes == dict.fromkeys(range(servers), 0), there.told
    for flat, _ in results:
        assert torch.equal(flat, results[0][0])
    torch.testing.assert_close(results[0][0], expected, rtol=1e-12, atol=1e-12)
    state = results[0][1]
    for number, held in expected_state["state"].items():
        torch.testing.assert_close(state["state"][number], held, rtol=1e-12, atol=1e-12)


def test_a_gradient_that_is_not_finite_is_dropped_everywhere():
    with serving(2, 2) as there:

        def work(rank):
            tensors = parameters()
            layout, flat = layout_of(tensors), flat_of(tensors)
            client = there.client(rank, 2)
            client.init(flat, layout, describe(optimizer_of(tensors), tensors), Terms())
            own = torch.ones_like(flat)
            own[-1] = torch.inf if rank else 1.0  # in the second server's part, and nobody says so
            client.push(0, own)
            end = client.commit(0, lr=0.1)
            before = flat.clone()
            version = client.pull(flat)
            assert (end.applied, end.redo, version) == (False, False, 0) and torch.equal(flat, before)
            client.push(0, torch.ones_like(flat))
            assert not client.commit(1, lr=0.1, finite=rank == 0).applied
            client.push(0, torch.ones_like(flat))
            assert client.commit(2, lr=0.1).applied
            client.close()

        together(2, work)


def test_what_is_not_pushed_counts_as_zero():
    with serving(3, 2) as there:

        def work(rank):
            tensors = parameters(torch.float32)
            layout, flat = layout_of(tensors), torch.zeros(layout_of(tensors).size)
            client = there.client(rank, 3)
            description = describe(torch.optim.SGD(tensors, lr=1.0), tensors)
            client.init(flat, layout, description, Terms())
            if rank == 1:
                client.push(2, torch.ones(3))
                client.push(100, torch.ones(5))
            if rank == 2:
                client.push(4, torch.ones(10) * 10)
            client.commit(0, lr=1.0)
            client.pull(flat)
            expected = torch.zeros(layout.size)
            expected[2:5] -= 1
            expected[100:105] -= 1
            expected[4:14] -= 10
            assert torch.equal(flat, expected)
            client.commit(1, lr=1.0)
            client.pull(flat)
            assert torch.equal(flat, expected)
            client.close()

        together(3, work)


@pytest.mark.parametrize("servers", [1, 2])
def test_deterministic_sums_follow_the_tree(servers):
    shards = 5
    leaves = [gradient(0, shard, layout_of(parameters()).size, torch.float32) for shard in range(shards)]
    tree = TreeSum(shards, lambda left, right: left + right)
    for shard, leaf in enumerate(leaves):
        tree.put((shard, shard + 1), leaf)
    expected = tree.take()
    results = []
    for workers in (1, 2, 3):
        with serving(workers, servers) as there:

            def work(rank, there=there, workers=workers):
                tensors = parameters(torch.float32)
                layout, flat = layout_of(tensors, whole=True), torch.zeros(layout_of(tensors).size)
                client = there.client(rank, workers)
                description = describe(torch.optim.SGD(tensors, lr=1.0), tensors)
                client.init(flat, layout, description, Terms(shards=shards))
                first, last = rank * shards // workers, (rank + 1) * shards // workers
                for node in cover(shards, first, last):
                    own = TreeSum(node[1] - node[0], lambda left, right: left + right)
                    for shard in range(*node):
                        own.put((shard - node[0], shard - node[0] + 1), leaves[shard])
                    client.push(0, own.take(), node)
                end = client.commit(0, lr=1.0, clip_norm=1000.0)
                client.pull(flat)
                client.close()
                return flat, end.norm

            results += together(workers, work)
    for flat, norm in results:
        assert torch.equal(flat, -expected)
        assert norm == results[0][1]


def test_side_sums_and_barrier():
    with serving(3) as there:

        def work(rank):
            client = there.client(rank, 3)
            floats = client.side(torch.tensor([[0.1, 0.2], [1e16, rank]], dtype=torch.float64))
            large = client.side(torch.full((300_000,), rank, dtype=torch.int64))
            assert (large == 3).all()
            client.barrier()
            assert client.side(torch.zeros(0, dtype=torch.int64)).shape == (0,)
            client.close()
            return floats

        first, *others = together(3, work)
        assert first.tolist() == [[0.1 + 0.1 + 0.1, 0.2 + 0.2 + 0.2], [3e16, 3.0]]
        assert all(torch.equal(first, other) for other in others)


def test_state_goes_back_and_forth():
    expected, _ = one_process(2, 4)
    with serving(2, 2) as there:

        def work(rank):
            tensors = parameters()
            layout, flat = layout_of(tensors), flat_of(tensors)
            client = there.client(rank, 2)
            client.init(flat, layout, describe(optimizer_of(tensors), tensors), Terms())
            kept, state = flat.clone(), None
            for step in [0, 1, 2, 3, 2, 3]:
                if step == 2 and state is None:
                    state, kept = client.state(), flat.clone()
                    client.barrier()
                elif step == 2:
                    flat.copy_(kept if rank == 0 else torch.zeros_like(flat))
                    client.load(flat, state if rank == 0 else None)
                    assert torch.equal(flat, kept)
                client.push(0, gradient(step, rank, layout.size))
                assert client.commit(step, lr=0.1 / (step + 1)).applied
                client.pull(flat)
            client.close()
            return flat

        for flat in together(2, work):
            torch.testing.assert_close(flat, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("compression", [{"type": "fp16", "scale": 8.0}, {"type": "2bit", "threshold": 0.5}])
def test_compressed_pushes(compression):
    with serving(2, 2) as there:

        def work(rank):
            tensors = parameters(torch.float32)
            layout, flat = layout_of(tensors), torch.zeros(layout_of(tensors).size)
            client = there.client(rank, 2)
            description = describe(torch.optim.SGD(tensors, lr=1.0), tensors)
            client.init(flat, layout, description, Terms(compression=compression))
            own = gradient(0, rank, layout.size, torch.float32)
            for piece in own.split(40):
                client.push(40 * (piece.storage_offset() // 40), piece)
            assert client.commit(0, lr=1.0).applied
            client.pull(flat)
            client.close()
            return flat, own

        (one, first), (two, second) = together(2, work)
        assert torch.equal(one, two)
        if compression["type"] == "fp16":
            assert torch.equal(-one, first.half().float() + second.half().float())
        else:
            assert set(one.tolist()) <= {-1.0, -0.5, 0.0, 0.5, 1.0} and (one != 0).any()
