"""The pool of gangs that other tests stand on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from gangs import GangError, GangPool, gangs


def total(gang, start):
    tensor = torch.tensor([start + gang.rank])
    gang.sum(tensor)
    return gang.rank, gang.num_ranks, int(tensor), os.getpid()


def one_fails(gang):
    if gang.rank == 1:
        raise LookupError("lost at rank 1")
    gang.barrier()


def one_hangs(gang):
    if gang.rank == 0:
        time.sleep(600)
    gang.barrier()


def one_dies(gang):
    if gang.rank == 1:
        os._exit(9)
    gang.barrier()


def test_the_same_processes_play_gangs_of_any_size(gang_pool: GangPool):
    runs = [gang_pool.run(total, n, 10) for n in (1, 2, 3, 2)]
    assert [[row[:3] for row in run] for run in runs] == [
        [(0, 1, 10)],
        [(0, 2, 21), (1, 2, 21)],
        [(0, 3, 33), (1, 3, 33), (2, 3, 33)],
        [(0, 2, 21), (1, 2, 21)],
    ]
    assert {row[3] for run in runs for row in run} == set(gang_pool.pids)
    with pytest.raises(ValueError, match="a gang of 4 from a pool of 3"):
        gang_pool.run(total, 4, 0)


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_failures_are_told_and_leave_nothing_behind():
    with gangs(2) as pool:
        pool.run(total, 2, 0)
        first = pool.pids
        with pytest.raises(GangError, match=r"(?s)rank 1 of 2.*in one_fails.*LookupError: lost at rank 1"):
            pool.run(one_fails, 2)
        assert all(map(gone, first)) and not pool.pids
        began = time.monotonic()
        with pytest.raises(GangError, match=r"(?s)no answer within 3 s.*in one_hangs"):
            pool.run(one_hangs, 2, limit_s=3)
        assert time.monotonic() - began < 60
        with pytest.raises(GangError, match=r"(?s)rank 1 of 2.*the process ended with code 9"):
            pool.run(one_dies, 2)
        assert [row[:3] for row in pool.run(total, 2, 5)] == [(0, 2, 11), (1, 2, 11)]
        last = pool.pids
    assert all(map(gone, last))
