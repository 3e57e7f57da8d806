"""How much memory there is: of the host, or what its control groups leave."""

from __future__ import annotations

from pathlib import Path

from shoal.base.host import memory

KIB = 1024


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_memory_is_the_least_that_host_and_control_groups_allow(tmp_path):
    assert memory(str(tmp_path)) is None
    write(tmp_path / "proc/meminfo", "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 600 kB\nHugePages_Total: 0\n")
    assert memory(str(tmp_path)) == (1000 * KIB, 600 * KIB)
    write(tmp_path / "proc/self/cgroup", "1:name=systemd:/x\n0::/job/worker\n")
    group = tmp_path / "sys/fs/cgroup/job"
    write(group / "worker/memory.max", "max\n")
    write(group / "memory.max", f"{500 * KIB}\n")
    write(group / "memory.current", f"{450 * KIB}\n")
    write(group / "memory.stat", f"anon 1\ninactive_file {50 * KIB}\n")  # the kernel gives that back
    assert memory(str(tmp_path)) == (500 * KIB, 100 * KIB)
    write(group / "worker/memory.max", f"{900 * KIB}")
    write(group / "worker/memory.current", f"{870 * KIB}")
    write(group / "worker/memory.stat", "inactive_file 0")
    assert memory(str(tmp_path)) == (500 * KIB, 30 * KIB)


def test_this_host_has_some():
    told = memory()
    assert told is None or 0 < told[1] <= told[0]
