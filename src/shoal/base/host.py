"""This host, as far as a process may use it."""

from __future__ import annotations

import os


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
