"""Which workers a restart has, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.base.errors import ShoalError
from shoal.launch.hosts import Host
from shoal.launch.job import Job, Plan, Role
from shoal.launch.plan import plan_of
from shoal.launch.regroup import regroup

A, B, C = Host("a"), Host("b"), Host("c", slots=3)


def first(count: int, *hosts: Host, least: int | None = None) -> Plan:
    return plan_of(Job((Role("worker", count, ("x",)),), Path("run"), hosts=hosts, min_workers=least), "ssh")


def placed(job: Job) -> list[str]:
    return [command.host for command in plan_of(job, "ssh").commands]


def test_all_hosts_are_back() -> None:
    assert placed(regroup(first(4, A, B), (A, B))) == ["a", "a", "b", "b"]


def test_a_lost_host_makes_the_job_smaller() -> None:
    assert placed(regroup(first(4, A, B, least=2), (B,))) == ["b", "b"]


def test_a_new_host_takes_the_place_of_a_lost_one() -> None:
    assert placed(regroup(first(4, A, B, least=1), (B, C))) == ["b", "b", "c", "c"]


def test_never_more_workers_than_at_first() -> None:
    assert placed(regroup(first(2, A, B), (A, B, C))) == ["a", "b"]


@pytest.mark.parametrize("least", [None, 3])
def test_too_few_hosts(least: int | None) -> None:
    with pytest.raises(ShoalError, match=r"cannot restart: b can take 2 workers, and the job needs"):
        regroup(first(4, A, B, least=least), (B,))
