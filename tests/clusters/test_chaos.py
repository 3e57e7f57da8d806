"""Twelve cases of the chaos test; `make chaos` plays them all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cases import Case
from cluster import Hosts
from stage import Stage

pytestmark = pytest.mark.slow

CASES = (
    Case("launcher", "KILL", delay_s=0.3),
    Case("launcher", "STOP", delay_s=0.1),
    Case("launcher", "KILL", early=True, delay_s=0.6),
    Case("agent", "KILL", local=True, delay_s=0.2),
    Case("agent", "STOP", delay_s=0.1),
    Case("warden", "KILL", delay_s=0.4),
    Case("warden", "STOP", delay_s=0.1),
    Case("worker", "KILL", delay_s=0.01),
    Case("data worker", "STOP", delay_s=0.1),
    Case("server", "TERM", delay_s=0.2),
    Case("ssh", "KILL", delay_s=0.1),
    Case("cable", "cut", delay_s=0.3),
)


@pytest.fixture(scope="module")
def stage(_two_hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    _two_hosts.mend()
    stage = Stage(_two_hosts, tmp_path_factory.mktemp("chaos"))
    yield stage
    stage.close()
    _two_hosts.mend()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_ends_as_promised_and_nothing_is_left(case: Case, stage: Stage) -> None:
    seen = stage.play(case)
    assert seen.faults == [], seen.said
