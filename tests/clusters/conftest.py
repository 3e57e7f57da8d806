"""Two ssh hosts that the tests of this folder share; every test finds them plugged in and on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from cluster import Hosts, cluster, why_not
from command import CPU
from outcome import what_came
from struck import TRAINING


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


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> object:
    """What TRAINING of digits comes to here, with one worker and no launcher."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    words = [sys.executable, "-m", "shoal", "train", "digits", *TRAINING, "-n", "1", "--run", str(run)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **CPU})
    assert done.returncode == 0, done.stderr
    return what_came(run)
