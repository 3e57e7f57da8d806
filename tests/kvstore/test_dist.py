"""KVStore over servers: MXNet's meaning of its verbs, with several workers."""

from __future__ import annotations

import pytest
import torch
from servers import LIMITS, SECRET, Serving, serving, together

from shoal.base.errors import UsageError
from shoal.kvstore import create
from shoal.kvstore.dist import Dist
from shoal.kvstore.link import ServerError

ONE = torch.ones(2, 3)


def store(there: Serving, type: str, rank: int, num_workers: int, **options) -> Dist:
    return create(
        type, servers=there.addresses, rank=rank, num_workers=num_workers, secret=SECRET, limits=LIMITS, **options
    )  # type: ignore[return-value]


@pytest.fixture(params=[(1, False), (2, False), (2, True)], ids=["one", "two", "memory"])
def there(request, monkeypatch):
    servers, memory = request.param
    if memory:
        monkeypatch.setattr("shoal.kvstore.dist._SHARED_FROM", 0)
    monkeypatch.setenv("MXNET_KVSTORE_BIGARRAY_BOUND", "5")
    with serving(2, servers) as there:
        yield there


@pytest.mark.parametrize("type", ["dist_sync", "dist_device_sync"])
def test_pushes_replace_by_the_sum_over_workers_and_devices(there, type):
    def work(rank):
        kv = store(there, type, rank, 2)
        assert (kv.type, kv.rank, kv.num_workers, kv.num_dead_node()) == (type, rank, 2, 0)
        kv.init(["small", "large"], [torch.full((2,), 5.0 + rank), ONE * (5 + rank)])
        assert torch.equal(kv.pull("large"), ONE * 5) and kv.pull("small").tolist() == [5, 5]
        kv.push("large", ONE * (rank + 1))
        assert torch.equal(kv.pull("large"), ONE * 3)
        kv.push(["small", "large"], [[torch.ones(2), torch.ones(2) * 10], [ONE, ONE * 10]])
        outs = [torch.zeros(2), [torch.zeros(2, 3), torch.zeros(2, 3)]]
        kv.pull(["small", "large"], out=outs)
        assert outs[0].tolist() == [22, 22] and all(torch.equal(out, ONE * 22) for out in outs[1])
        for value in range(5):  # no pull between: each is a round of its own
            kv.push("large", ONE * value)
        kv.pushpull("small", value := torch.ones(2))
        assert value.tolist() == [2, 2] and torch.equal(kv.pull("large"), ONE * 8)
        kv.barrier()
        kv.close()

    together(2, work)
    there.end()
    assert set(there.codes.values()) == {0}


@pytest.mark.parametrize("type", ["dist_sync", "dist_async"])
def test_an_optimizer_on_the_servers(there, type, tmp_path):
    expected = {size: torch.nn.Parameter(torch.zeros(size)) for size in (2, 6)}
    optimizer = torch.optim.SGD(expected.values(), lr=0.1, momentum=0.9)
    for step in range(6):
        for parameter in expected.values():
            parameter.grad = torch.ones_like(parameter) * (3 if type == "dist_sync" else 1 + step % 2)
        optimizer.step()

    def work(rank):
        kv = store(there, type, rank, 2)
        kv.init([0, 1], [torch.zeros(2), torch.zeros(6)])
        if rank == 0:
            kv.set_optimizer("sgd", lr=0.1, momentum=0.9)
        kv.barrier()
        for step in range(6):
            if step == 3:
                if rank == 0:
                    kv.save_optimizer_states(tmp_path / "states")
                    kv.set_optimizer("sgd", lr=0.1, momentum=0.9)
                    kv.load_optimizer_states(tmp_path / "states")
                kv.barrier()
            for key, size in ((0, 2), (1, 6)):
                if type == "dist_sync" or step % 2 == rank:
                    kv.push(key, torch.ones(size) * (rank + 1))
                kv.pull(key)
            kv.barrier()
        values = [kv.pull(0), kv.pull(1)]
        kv.close()
        return values

    for values in together(2, work):
        for value, parameter in zip(values, expected.values(), strict=True):
            torch.testing.assert_close(value, parameter.detach())


def test_broadcast_and_a_new_rate(there):
    def work(rank):
        kv = store(there, "dist_sync", rank, 2)
        out = torch.zeros(2, 3)
        kv.broadcast("a", ONE * (4 + rank), out)
        assert torch.equal(out, ONE * 4)
        kv.set_optimizer("sgd", lr=1.0, rescale_grad=0.5)
        kv.pushpull("a", ONE.clone(), out)
        assert torch.equal(out, ONE * 3)
        kv.barrier()
        kv.set_learning_rate(2.0)
        kv.barrier()
        kv.pushpull("a", ONE.clone(), out)
        assert torch.equal(out, ONE)
        kv.close()

    together(2, work)


def test_an_asynchronous_push_without_an_optimizer_is_told(there, monkeypatch):
    monkeypatch.setattr("shoal.kvstore.server._OPTIMIZER_S", 0.2)

    def work(rank):
        kv = store(there, "dist_async", rank, 2)
        kv.init("a", ONE)
        kv.push("a", ONE)
        with pytest.raises(ServerError, match="worker 0 has not called set_optimizer"):
            kv.pull("a")

    together(2, work)


def test_workers_that_differ_are_told(there):
    def work(rank):
        kv = store(there, "dist_sync", rank, 2)
        with pytest.raises(ServerError, match="differ in layout, optimizer or terms"):
            kv.init("a", torch.zeros(2 + rank))

    together(2, work)


def test_what_cannot_be_is_told():
    with pytest.raises(UsageError, match="dist_sync: no servers; set SHOAL_SERVERS"):
        create("dist_sync", env={})
    with serving(1) as there:
        kv = store(there, "dist_sync", 0, 1)
        with pytest.raises(UsageError, match="servers do not run; use set_optimizer"):
            kv.set_updater(lambda *_: None)
        with pytest.raises(UsageError, match="no gradient compression '1bit'"):
            kv.set_gradient_compression({"type": "1bit"})
        kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        with pytest.raises(UsageError, match="compressed as float32 only"):
            kv.init("b", torch.zeros(3, dtype=torch.float64))
        kv.init("a", torch.zeros(3))
        with pytest.raises(UsageError, match="before init"):
            kv.set_gradient_compression({"type": "fp16"})
        kv.close()


def test_compressed_pushes(there):
    gradients = torch.randn(2, 5, 37, generator=torch.Generator().manual_seed(1))

    def work(rank):
        kv = store(there, "dist_sync", rank, 2)
        kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        kv.init("a", torch.zeros(37))
        pulled = []
        for gradient in gradients[rank]:
            kv.push("a", gradient)
            pulled.append(kv.pull("a"))
        kv.close()
        return pulled

    residual = torch.zeros(2, 37)
    first, second = together(2, work)
    for step in range(5):
        total = torch.zeros(37)
        for rank in range(2):
            residual[rank] += gradients[rank, step]
            for place in range(37):  # MXNet's definition, number by number
                value = residual[rank, place].item()
                code = 0.5 if value >= 0.5 else -0.5 if value <= -0.5 else 0.0
                residual[rank, place] -= code
                total[place] += code
        assert torch.equal(first[step], total) and torch.equal(second[step], total)
