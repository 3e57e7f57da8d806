"""Sync: the working directory, copied to other hosts before a start."""

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
LIMIT_S = 600.0


def sync(hosts: Sequence[Host], folder: Path, reach: Reach) -> None:
    """Copies the working directory to `folder` on all of `hosts`, at once; ShoalError that names each that failed."""
    if not hosts:
        return
    if shutil.which("rsync") is None:
        raise UsageError("--sync-dst-dir: no `rsync` on PATH here; install it, or use a folder that all hosts share")
    copies = [(host, _start(host, folder, reach)) for host in hosts]
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


def _start(host: Host, folder: Path, reach: Reach) -> subprocess.Popen[str]:
    ssh = reach.argv(host, ("true",))
    rsh = shlex.join(ssh[: ssh.index("--")])
    name = f"[{host.name}]" if ":" in host.name else host.name
    argv = ["rsync", "-a", *(f"--exclude={name}" for name in LEFT_OUT), f"--rsh={rsh}", "--"]
    argv += [f"{os.getcwd()}/", f"{name}:{folder}/"]
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )


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
