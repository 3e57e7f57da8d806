"""The control group: all in it die by one write, and nothing of it is left."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.launch import group as module
from shoal.launch.group import Group


@pytest.fixture
def group() -> Iterator[Group]:
    group = Group()
    group.make()
    if group._procs < 0:
        pytest.skip("no control group may be made here")
    yield group
    group.close()


def test_one_write_kills_all_in_it(group: Group) -> None:
    argv = ["sh", "-c", "setsid -f sleep 1000; echo ready; sleep 1000"]
    child = subprocess.Popen(argv, preexec_fn=group.enter, stdout=subprocess.PIPE)
    assert child.stdout and child.stdout.readline() == b"ready\n"
    held = Path(f"{group._folder}/cgroup.procs").read_text().split()
    assert len(held) >= 2
    group.kill()
    assert child.wait(5) == -9
    child.stdout.read()  # whose end comes when the last one has ended
    child.stdout.close()
    group.close()
    assert not os.path.exists(f"{group._folder}")


def test_groups_whose_guardians_were_killed_are_swept(group: Group) -> None:
    stale = Group()
    stale.make()
    os.close(stale._procs)
    again = Group()
    again.make()
    assert not os.path.exists(f"{stale._folder}")
    again.close()


def test_without_a_group_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_fresh", lambda: None)
    group = Group()
    group.make()
    group.enter()
    group.kill()
    group.close()
