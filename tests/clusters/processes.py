"""Processes of this machine and of the hosts in its namespaces, as /proc shows them."""

from __future__ import annotations

import os
from pathlib import Path


def everybody() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def state(pid: int) -> str:
    """One letter; empty where there is no such process."""
    return (_stat(pid) or [""])[0]


def lives(pid: int) -> bool:
    return state(pid) not in ("", "Z", "X")


def identity(pid: int) -> str:
    """When it was started; with the number it names one process for ever. Empty where it has ended."""
    fields = _stat(pid)
    return fields[19] if fields and fields[0] not in "ZX" else ""


def parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def family(pid: int) -> list[int]:
    """It and all below it that live."""
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        if lives(one) and one not in found:
            found.append(one)
            todo += children(one)
    return found


def name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def environment(pid: int) -> dict[str, str]:
    """What a process was started with; empty when it is gone."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return {key: value for key, _, value in (item.partition("=") for item in data.split("\0") if "=" in item)}


def describe(pid: int) -> str:
    return f"{pid} {name(pid)} ({state(pid)}) {command(pid)[-60:]}"


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
