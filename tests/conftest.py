"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest

from gangs import GangPool, gangs
from lag import Lag

hypothesis.settings.register_profile("no clock", deadline=None)
hypothesis.settings.load_profile("no clock")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `shoal` has it; torch reads it when it is loaded


@pytest.fixture(scope="session")
def gang_pool() -> Iterator[GangPool]:
    """Three processes that run a function as a gang: `gang_pool.run(function, n, *args)` -> results by rank."""
    with gangs(3) as pool:
        yield pool


@pytest.fixture
def lag() -> Iterator[Lag]:
    """`began = lag.begin()` … `assert time.monotonic() - began < lag.allows(5.0)`, and what this machine adds."""
    with Lag() as lag:
        yield lag
