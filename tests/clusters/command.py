"""`shoal` on the head, with the hosts' names known and no name server in reach."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cluster import Hosts

CPU = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def argv(hosts: Hosts, *words: str | Path) -> list[str]:
    return hosts.on_head([sys.executable, "-m", "shoal", *map(str, words)])


def shoal(hosts: Hosts, *words: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv(hosts, *words),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        timeout=600,
        env={**os.environ, **CPU, **env},
    )


def launch(
    hosts: Hosts, folder: Path, *words: str | Path, on: str = "host1,host2", config: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """`shoal launch` with its logs in `folder`/run."""
    ssh = ("--ssh-config", config or hosts.ssh_config)
    return shoal(hosts, "launch", "-H", on, *ssh, "--log-dir", folder / "run", *words, cwd=folder)
