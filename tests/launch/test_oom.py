"""A want of memory is named where the kernel killed for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import tiny_launch

from shoal.launch.oom import OutOfMemory

LIMIT = 256 << 20


def test_a_want_of_memory_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 1\noom_kill 1\n")
    monkeypatch.setattr("shoal.launch.oom._counters", lambda: [events])
    monkeypatch.setattr("shoal.launch.oom._in_kernel_log", lambda pid: False)
    memory = OutOfMemory()
    assert memory.cause(os.getpid()) is None
    events.write_text("low 0\noom 2\noom_kill 2\n")
    cause = memory.cause(os.getpid())
    assert cause is not None and "OOM killer" in cause
    assert memory.cause(os.getpid()) is None


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group whose processes have 256 MB together."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, inside = line.split(":", 2)
        root = Path("/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup")
        group = root / inside.lstrip("/") / f"test-memory-{os.getpid()}"
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        if "memory" not in controllers.split(",") and controllers:
            continue
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(LIMIT))
            yield group
            return
        except OSError:
            continue
        finally:
            group.rmdir()
    pytest.skip("no control group with a memory limit may be made here")


def test_the_kernels_oom_killer_is_named(small_memory: Path, tmp_path: Path) -> None:
    """A real one, let loose by a worker that takes more than its group has."""
    script = "import time\nheld = [bytearray(b'x' * (1 << 24)) for _ in range(64)]"
    done = tiny_launch(tmp_path, script, before=lambda: (small_memory / "cgroup.procs").write_text("0") and None)
    assert done.returncode == 1
    assert (
        "worker 0 failed first: killed by SIGKILL (exit -9), by the kernel's OOM killer: the host, or the job's memory "
        "limit, had no memory left"
    ) in done.stderr.splitlines()
