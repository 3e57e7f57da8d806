"""This host, as far as a process may use it."""

from __future__ import annotations

import os
from pathlib import Path


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> int:
    """CUDA devices that this process may use, counted without torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([number for number in visible.split(",") if number.strip() and number.strip() != "-1"])
    try:
        return sum(entry[6:].isdigit() for entry in os.listdir("/dev") if entry.startswith("nvidia"))
    except OSError:
        return 0


def resident_peak() -> int:
    """Bytes of memory this process had at its highest."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory(root: str = "/") -> tuple[int, int] | None:
    """Bytes of memory that this host, or this process's control group, has in all, and free; None: it does not say."""
    try:
        lines = (Path(root) / "proc/meminfo").read_text().splitlines()
        told = {words[0]: int(words[1]) * 1024 for words in map(str.split, lines) if len(words) > 1}
        limits = [(told["MemTotal:"], told["MemAvailable:"])]
    except (OSError, KeyError, ValueError):
        return None
    for folder in _groups(root):
        try:
            most = int((folder / "memory.max").read_text())
            held = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            used = int((folder / "memory.current").read_text()) - int(held["inactive_file"])
            limits.append((most, max(0, most - used)))
        except (OSError, KeyError, ValueError):  # no such file, or the limit is `max`
            continue
    return min(all_ for all_, _ in limits), min(free for _, free in limits)


def _groups(root: str) -> list[Path]:
    """This process's control group (version 2) and those that it lies in."""
    try:
        lines = (Path(root) / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own = next((line[3:] for line in lines if line.startswith("0::/")), "/")
    top = Path(root) / "sys/fs/cgroup"
    inside = top / own.lstrip("/")
    return [inside, *(folder for folder in inside.parents if top in (folder, *folder.parents))]
