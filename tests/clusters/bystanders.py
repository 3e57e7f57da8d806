"""Bystanders: processes that look like a job's and have nothing to do with it. They must live on untouched."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from cluster import Hosts
from processes import command, everybody, identity, state

LIVELY = Path(__file__).parent / "lively.py"
TAGS = ({}, {"SHOAL_JOB": "0123456789abcdef", "SHOAL_ROLE": "worker", "SHOAL_RANK": "0"})
"""One without a job's tag, one with that of another job."""


class Bystanders:
    """Two on the head and on each host. They end with the process that placed them, whatever ends that."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._there: list[tuple[str, int, str]] = []
        """Host, process, its identity."""
        self._held: list[subprocess.Popen[bytes]] = []
        """Each reads from a pipe that ends with us."""

    def place(self) -> None:
        """Wherever there are none (any more)."""
        there = {host for host, *_ in self._there}
        for host in ("head", *self._hosts.names):
            if host not in there:
                self._there += [self._one(host, tag) for tag in TAGS]

    def faults(self, *, off: str | None) -> list[str]:
        """Those that were hit are named, and forgotten; on the host that is `off` they may be."""
        hit = [(host, pid) for host, pid, who in self._there if identity(pid) != who or state(pid) != "S"]
        self._there = [one for one in self._there if identity(one[1]) == one[2]]
        return [f"a bystander on {host} was hit ({state(pid) or 'gone'})" for host, pid in hit if host != off]

    def close(self) -> None:
        for process in self._held:
            process.communicate()

    def _one(self, host: str, tag: dict[str, str]) -> tuple[str, int, str]:
        words = ["env", *(f"{key}={value}" for key, value in tag.items())]
        words += [sys.executable, "-S", str(LIVELY), "bystander"]
        before = _all()
        self._held.append(
            subprocess.Popen(
                words if host == "head" else self._hosts.argv(host, words),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        limit = time.monotonic() + 5.0
        while not (fresh := {pid for pid in _all() - before if state(pid) == "S"}):
            assert time.monotonic() < limit, "no bystander"
            time.sleep(0.01)
        pid = fresh.pop()
        return host, pid, identity(pid)


def _all() -> set[int]:
    found = {pid: command(pid) for pid in everybody()}
    return {pid for pid, words in found.items() if words.endswith("lively.py bystander") and "nsenter" not in words}
