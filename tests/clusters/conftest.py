"""Two ssh hosts that the tests of this folder share; every test finds them plugged in and on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster import Hosts, cluster, why_not


@pytest.fixture(scope="session")
def _two_hosts() -> Iterator[Hosts]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with cluster(2) as hosts:
        yield hosts


@pytest.fixture
def hosts(_two_hosts: Hosts) -> Iterator[Hosts]:
    _two_hosts.mend()
    yield _two_hosts
    _two_hosts.mend()
