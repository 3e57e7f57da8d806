"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gangs import GangPool, gangs


@pytest.fixture(scope="session")
def gang_pool() -> Iterator[GangPool]:
    """Three processes that run a function as a gang: `gang_pool.run(function, n, *args)` -> results by rank."""
    with gangs(3) as pool:
        yield pool
