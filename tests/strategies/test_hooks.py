"""Compressed exchanges: sums, not means; nothing lost for good; bytes counted; a bad step forgotten by all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gangs import GangPool
from shoal.kvstore.compress import TwoBit
from shoal.step.gang import Gang
from shoal.strategies.ddp import Ddp
from shoal.strategies.replicated.hooks import Half, Hook, PowerSgd, Ternary, Whole

ROWS, COLUMNS = 8, 6
BATCH = 48


class Bucket:
    """What DDP hands to a hook: one matrix and one vector."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values
        self._parameters = [torch.zeros(ROWS, COLUMNS), torch.zeros(ROWS)]

    def of(self, values: torch.Tensor) -> Bucket:
        self._values = values
        return self

    def buffer(self) -> torch.Tensor:
        return self._values

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def parameters(self) -> list[torch.Tensor]:
        return self._parameters

    def gradients(self) -> list[torch.Tensor]:
        matrix, vector = self._values.split([ROWS * COLUMNS, ROWS])
        return [matrix.view(ROWS, COLUMNS), vector]


def gradient(rank: int, step: int, rank_one: bool = False) -> torch.Tensor:
    torch.manual_seed(100 * step + rank)
    matrix = torch.randn(ROWS, COLUMNS)
    if rank_one:  # the same rows on every worker: their sum is of rank one, too
        matrix = torch.outer(torch.linspace(1, 2, ROWS), torch.linspace(-1, 1, COLUMNS)) * (rank + 1) * (step + 1)
    return torch.cat([matrix.view(-1), torch.randn(ROWS)]) / BATCH


def hook_of(kind: str, n: int) -> Hook:
    if kind == "whole":
        return Whole(n)
    if kind in ("fp16", "bf16"):
        return Half(n, kind, 32.0 if kind == "fp16" else 1.0)
    return PowerSgd(n, 1, 2) if kind == "powersgd" else Ternary(n, 0.5 / BATCH)


def sums(gang: Gang, kind: str, steps: int, rank_one: bool, bad: int) -> tuple[list[torch.Tensor], list[int]]:
    """The hook's result of each step, and the bytes of each; in step `bad` rank 0's gradient is not finite."""
    hook, bucket, got, sent = hook_of(kind, gang.num_ranks), Bucket(torch.zeros(0)), [], []
    for step in range(steps):
        values = gradient(gang.rank, step, rank_one)
        if step == bad and gang.rank == 0:
            values[3] = torch.inf
        before = hook.bytes_sent
        result = hook.sum(bucket.of(values)).wait()
        assert torch.equal(result.nan_to_num(), values.nan_to_num()), "the buffer holds the sum"
        if step == bad:
            hook.forget()
        got.append(values.clone())
        sent.append(hook.bytes_sent - before)
    return got, sent


def expected(n: int, step: int, rank_one: bool = False) -> torch.Tensor:
    return torch.stack([gradient(rank, step, rank_one) for rank in range(n)]).sum(0)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(("kind", "near"), [("whole", 1e-6), ("fp16", 2e-3), ("bf16", 2e-2)])
def test_sums_not_means(gang_pool: GangPool, n: int, kind: str, near: float):
    for got, sent in gang_pool.run(sums, n, kind, 2, False, -1):
        for step, values in enumerate(got):
            torch.testing.assert_close(values, expected(n, step), rtol=near, atol=near / BATCH)
        whole = 2 * (n - 1) * 4 * (ROWS * COLUMNS + ROWS) // n
        assert sent == [whole if kind == "whole" else whole // 2] * 2
    assert bool(hook_of(kind, n).may_overflow) == (kind == "fp16")


@pytest.mark.parametrize("n", [2, 3])
def test_powersgd_is_exact_for_what_has_its_rank_and_sends_two_thin_matrices(gang_pool: GangPool, n: int):
    for got, sent in gang_pool.run(sums, n, "powersgd", 5, True, -1):
        for step, values in enumerate(got):
            torch.testing.assert_close(values, expected(n, step, True), rtol=1e-4, atol=1e-5)
        wide = [4 * count for count in (ROWS * COLUMNS + ROWS, ROWS + COLUMNS + ROWS)]
        assert sent == [2 * (n - 1) * (wide[step > 1]) // n for step in range(5)]


@pytest.mark.parametrize("kind", ["powersgd", "2bit"])
def test_what_is_left_out_comes_later(gang_pool: GangPool, kind: str):
    steps = 60
    ((got, _), (other, _)) = gang_pool.run(sums, 2, kind, steps, False, -1)
    assert all(torch.equal(a, b) for a, b in zip(got, other, strict=True))
    wanted = torch.stack([expected(2, step) for step in range(steps)])
    lost = (torch.stack(got).sum(0) - wanted.sum(0)).norm() / wanted.norm(dim=1).sum()
    once = (got[-1] - wanted[-1]).norm() / wanted[-1].norm()
    assert lost < 0.1 < once, (lost, once)


def test_two_bits_are_the_codecs_of_all_workers_added(gang_pool: GangPool):
    n, codecs = 3, [TwoBit(0.5 / BATCH) for _ in range(3)]
    got, sent = gang_pool.run(sums, n, "2bit", 3, False, -1)[1]
    for step in range(3):
        total, one = torch.zeros(ROWS * COLUMNS + ROWS), torch.zeros(ROWS * COLUMNS + ROWS)
        for rank, codec in enumerate(codecs):
            codec.decode(codec.encode(0, gradient(rank, step)), one)
            total += one
        assert torch.equal(got[step], total)
    assert sent == [2 * 16] * 3, "56 numbers are 16 bytes, for each of the others"


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("kind", ["fp16", "bf16", "powersgd", "2bit"])
def test_what_is_not_finite_reaches_all_and_is_forgotten(gang_pool: GangPool, n: int, kind: str):
    """Otherwise the memory of one bad step would spoil all that come."""
    for got, _ in gang_pool.run(sums, n, kind, 6, False, 3):
        assert [bool(values.isfinite().all()) for values in got] == [True] * 3 + [False] + [True] * 2


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, None), ({"compress": "bf16"}, Half), ({"compress": "powersgd"}, PowerSgd), ({"compress": "2bit"}, Ternary)],
)
def test_the_option(options: dict[str, Any], kind: type | None):
    assert type(Ddp(**options)._hook(2, 64)) is (kind or type(None))
    assert Ddp(**options).faults() == []
    assert [key for key, _ in Ddp(**options, deterministic=True).faults()] == (["compress"] if options else [])
