"""Sync: folders copied between hosts: the working directory before a start, a run folder that is not shared."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from shoal.base.errors import ShoalError, UsageError
from shoal.launch.hosts import Host
from shoal.launch.reach import Reach

LEFT_OUT = ("/runs/", "/.git/", "__pycache__/")
"""What stays here, as rsync's --exclude."""
OWN = ("/logs/", "/.lock", "/.job-*", "/plan.txt", "/recipe.yaml")
"""What every run folder has of its own."""
LIMIT_S = 600.0


def sync(hosts: Sequence[Host], workdir: Path, folder: Path, reach: Reach) -> None:
    """Copies `workdir` to `folder` on all of `hosts`, at once; ShoalError that names each that failed."""
    if not hosts:
        return
    if shutil.which("rsync") is None:
        raise UsageError("--sync-dst-dir: no `rsync` on PATH here; install it, or use a folder that all hosts share")
    copies = [(host, _start(host, workdir, folder, reach)) for host in hosts]
    faults = []
    for host, copy in copies:
        try:
            _, said = copy.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            copy.kill()
            faults.append(f"{host.text}: --sync-dst-dir {folder}: not copied within {LIMIT_S:g} s")
            continue
        finally:
            if copy.poll() is None:
                copy.kill()
        if copy.returncode:
            faults.append(f"{host.text}: --sync-dst-dir {folder}: {_reason(host, copy.returncode, said, reach)}")
    if faults:
        raise ShoalError("\n".join(faults))


class Carrier:
    """Copies a run folder, logs left out, between this host and the one where worker 0 writes it."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    def fits(self) -> bool:
        return shutil.which("rsync") is not None

    def fetch(self, host: Host, folder: Path) -> subprocess.Popen[str]:
        """Starts to copy the folder from there to here."""
        return _rsync(host, self._reach, OWN, f"{_name(host)}:{folder}/", f"{folder}/")

    def push(self, host: Host, folder: Path) -> subprocess.Popen[str]:
        """Starts to copy the folder from here to there."""
        return _rsync(host, self._reach, OWN, f"{folder}/", f"{_name(host)}:{folder}/")

    def why(self, host: Host, copy: subprocess.Popen[str]) -> str:
        """Why a copy failed, in one line."""
        assert copy.stderr
        return _reason(host, copy.returncode, copy.stderr.read(), self._reach)


def _start(host: Host, workdir: Path, folder: Path, reach: Reach) -> subprocess.Popen[str]:
    return _rsync(host, reach, LEFT_OUT, f"{os.path.abspath(workdir)}/", f"{_name(host)}:{folder}/")


def _rsync(host: Host, reach: Reach, left_out: Sequence[str], *words: str) -> subprocess.Popen[str]:
    ssh = reach.argv(host, ("true",))
    rsh = shlex.join(ssh[: ssh.index("--")])
    return subprocess.Popen(
        ["rsync", "-a", *(f"--exclude={name}" for name in left_out), f"--rsh={rsh}", "--", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def _name(host: Host) -> str:
    return f"[{host.name}]" if ":" in host.name else host.name


def _reason(host: Host, code: int, said: str, reach: Reach) -> str:
    """rsync's own words, or ssh's where it is ssh that failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("rsync")]
    if code in (12, 255) and (not own or "connection unexpectedly closed" in own[0]):
        told = reach.reason(host, 255 if "command not found" not in said else 127, "\n".join(lines[:1]))
        if "command not found" in said or "rsync: not found" in said:
            return "no `rsync` there; install it"
        return told.partition(": ")[2]
    return (own or lines or [f"rsync ended with exit {code}"])[0]
