"""Jobs of tiny workers that need no torch, under a head of their own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest

import shoal
from shoal.launch.head import Head
from shoal.launch.job import Command, Job, Outcome, Plan
from shoal.launch.launchers.local import local_line

SOURCE = str(Path(shoal.__file__).parents[1])
PRELUDE = "import os, signal, sys, time; from shoal.launch.report import report_error\n"
SLEEP = "time.sleep(60)"


def worker(rank: int, script: str, folder: Path, role: str = "worker", **env: str) -> Command:
    return Command(
        role=role,  # type: ignore[arg-type]
        rank=rank,
        host="localhost",
        argv=(sys.executable, "-c", PRELUDE + textwrap.dedent(script)),
        env={"PYTHONPATH": SOURCE, "FOLDER": str(folder), "SHOAL_RENDEZVOUS": "{rendezvous}", **env},
        log=folder / "logs" / f"{role}-{rank}.log",
    )


def head(commands: list[Command], *, console: TextIO | None = None, **job: Any) -> Head:
    """What starts `commands` on this host; `job`: fields of the Job."""
    planned = Plan(tuple(commands), Job((), commands[0].log.parent.parent, **job), "local")
    return Head(planned, local_line, console=console or io.StringIO())


def run(folder: Path, *scripts: str, **options: Any) -> Outcome:
    """Runs one worker per script; `console` in options reads along."""
    commands = [worker(rank, script, folder) for rank, script in enumerate(scripts)]
    return head(commands, **options).start().wait(timeout_s=30)


def tiny_launch(
    folder: Path, script: str, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """`shoal launch` of one worker with this script. `before` is called in the launcher's process before it begins."""
    return subprocess.run(
        [sys.executable, "-m", "shoal", "launch", "--log-dir", str(folder / "run"), "--", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        preexec_fn=before,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )


def log(folder: Path, rank: int) -> str:
    return (folder / "logs" / f"worker-{rank}.log").read_text()


def wait_for(true: Callable[[], object], seconds: float = 20) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)


def tagged(tag: str) -> list[int]:
    """Processes, wherever they are by now, whose environment holds `tag`; zombies have none."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if tag.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
