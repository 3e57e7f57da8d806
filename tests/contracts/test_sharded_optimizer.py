"""An optimizer shared out among workers trains what it trains alone, and its checkpoints do not know it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from by_hand import by_hand
from job import FEWER, NETS, PEAK, UNEVEN, Job
from trainings import assert_same, rig_of, run, single

from gangs import GangPool
from shoal.base.errors import UsageError
from shoal.step.gang import Gang
from shoal.step.optims.muon import Muon
from shoal.strategies.replicated.sharded import Sharded, _shared_out

NAME = "ddp:shard_optimizer=true"


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("net", ["adamw", "shard", "layout"])
def test_equals_the_training_by_hand(gang_pool: GangPool, n: int, net: str):
    job = replace(UNEVEN, **NETS[net])
    assert_same(run(gang_pool, NAME, n, job)[0].numbers, by_hand(job).numbers, exactly=False)


@pytest.mark.parametrize("n", [2, 3])
def test_the_same_bits_and_checkpoints_free_of_it(gang_pool: GangPool, n: int):
    """Saved sharded over n and continued whole, and the other way round."""
    job = replace(FEWER, net="norm-dropout", exactly=True, steps=6, optim="adamw")
    expected, halfway = single(gang_pool, job), replace(job, steps=3)
    saved = run(gang_pool, NAME, n, halfway)[0]
    assert_same(saved.numbers, single(gang_pool, halfway).numbers, exactly=True)
    assert_same(run(gang_pool, "ddp", 2, job, 3, saved.state)[0].numbers, expected.numbers, exactly=True)
    whole = single(gang_pool, halfway).state
    assert_same(run(gang_pool, NAME, n, job, 3, whole)[0].numbers, expected.numbers, exactly=True)


def held(gang: Gang, job: Job) -> tuple[int, int]:
    """Numbers of optimizer state on this worker, before and after loading a whole state."""
    sizes = []
    rig: Any = rig_of(gang, NAME, job)
    rig.load_state_dict(rig_of(gang, "ddp", job).state_dict())
    state = rig.state_dict()
    for _ in range(2):
        for parameter in rig.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        rig.optimizer.step()
        sizes.append(sum(value["momentum_buffer"].numel() for value in rig.optimizer.state.values()))
        state = rig.state_dict()
        rig.load_state_dict(state)
    return sizes[0], sizes[1]


def test_each_worker_holds_its_part(gang_pool: GangPool):
    told = gang_pool.run(held, 3, UNEVEN)
    whole = sum(parameter.numel() for parameter in by_hand(UNEVEN).state["model"].values() if parameter.ndim) - 18
    assert all(before == after for before, after in told)
    assert sum(before for before, _ in told) == whole
    assert max(before for before, _ in told) < whole


def bits(gang: Gang) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(6, 3))
    optimizer: Any = Muon(lr=PEAK).make(model)
    if gang.num_ranks > 1:
        optimizer = Sharded(optimizer, gang)
    for step in range(2):
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = torch.full_like(parameter, 0.1 * (number + 1) * (step + 1))
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def test_optimizers_of_whole_tensors_and_groups_that_are_empty_somewhere(gang_pool: GangPool):
    ((expected,), found) = gang_pool.run(bits, 1), gang_pool.run(bits, 3)
    for own in found:
        assert all(torch.equal(a, b) for a, b in zip(own, expected, strict=True))


def test_sharing_out_is_even_and_what_needs_the_whole_gradient_is_refused():
    assert _shared_out([5, 100, 60, 40, 1], 2) == [0, 0, 1, 1, 1]
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1)], "max_grad_norm": 1.0}], lr=0.1)
    with pytest.raises(UsageError, match="max_grad_norm"):
        Sharded(optimizer, None)  # type: ignore[arg-type]
