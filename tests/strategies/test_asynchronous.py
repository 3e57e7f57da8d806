"""What asynchronous workers agree on when they meet."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.kvstore.layout import Layout, Terms
from shoal.kvstore.table import Plan, Table
from shoal.kvstore.talk import Commit
from shoal.step.gang import Gang
from shoal.step.threads import Crew
from shoal.strategies.replicated.asynchronous import Account
from shoal.strategies.replicated.buffers import Buffers

LAYOUT = Layout(("weight",), ((2,),), ((1,),))
SGD = {"name": "sgd", "groups": [{"params": [0], "lr": 0.1}]}


def test_buffers_become_the_mean_by_work_done():
    def work(gang: Gang) -> list[float]:
        model = nn.BatchNorm1d(2).double()
        buffers = Buffers(model, average=True)
        model.running_mean += gang.rank + 1  # type: ignore[operator]
        model.num_batches_tracked += 4 * gang.rank  # type: ignore[operator]
        buffers.keep()
        buffers.agree(gang, weight=gang.rank * 3)
        return [*model.running_mean.tolist(), *model.running_var.tolist(), float(model.num_batches_tracked)]  # type: ignore

    crew = Crew([torch.device("cpu")] * 3, wait_s=20)
    mean = (0 * 1 + 3 * 2 + 6 * 3) / 9
    for found in crew.each(work):
        torch.testing.assert_close(found, [mean, mean, 1.0, 1.0, float(round((3 * 4 + 6 * 8) / 9))])
    crew.close()


def test_an_account():
    account = Account([3, 0, 1], images=40, dropped=0, pushes=[2, 2])
    assert (account.mean, account.most) == (0.5, 2)
    assert (Account([], 0, 0, [0]).mean, Account([], 0, 0, [0]).most) == (0, 0)


@pytest.mark.parametrize(
    ("pushes", "expected"),
    [(0, [1, 1, 1, 1]), (1, [1, 0.5, 1, 0.25]), (2, [1, 1, 1, 0.5]), (3, [1, 1, 1, 1]), (4, [1, 1, 1, 1])],
)
def test_a_push_is_damped_by_the_whole_batches_that_came_between(pushes, expected):
    terms = Terms(mode="async", damped_beyond=pushes)
    table = Table(Plan(layout=LAYOUT, low=0, high=2, optimizer=SGD, terms=terms), torch.zeros(2), shared=None)
    moved = []
    for step, pulled in enumerate((0, 0, 2, 0)):  # stalenesses 0, 1, 0, 3
        before = table.values.clone()
        commit = Commit(1.0, None, True, 0, 0, pulled)
        staleness = table.apply_alone((0, ""), step, torch.ones(2), commit, 1.0)
        moved.append((staleness, (before - table.values)[0].item()))
    assert moved == list(zip((0, 1, 0, 3), expected, strict=True))
