"""Script: what a batch engine runs, and how its own commands are asked."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.base.errors import ShoalError
from shoal.launch.job import Job

_ANSWER_S = 60.0
_SHOWN = 8
"""Lines of its complaints that people see."""


def script(python: str, job: Job, variables: Path | None = None, workdir: str | None = None) -> str:
    """What a batch engine runs: the launcher, on a host of its own. Words are quoted for sh.

    `variables`: a file that sets some; `workdir`: where to start, for engines that cannot be told.
    """
    lines = ["#!/bin/sh", "# This command once more, as the launcher inside the job."]
    lines += [f"set -a && . {shlex.quote(str(variables))} && set +a || exit 1"] if variables else []
    lines += [f"cd {shlex.quote(workdir)} || exit 1"] if workdir else []
    lines += [f"exec {shlex.join((python, '-m', 'shoal', *job.words))}"]
    return "\n".join(lines) + "\n"


def write_private(place: Path, text: str) -> None:
    """A file for its owner alone."""
    (place.parent / "logs").mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "w", encoding="utf-8") as file:
        file.write(text)


def ask(argv: Sequence[str], env: Mapping[str, str] | None = None, *, said: str = "") -> str:
    """What it prints, with `said` on its stdin; ShoalError with its own words where it fails."""
    try:
        done = subprocess.run(
            argv, input=said, capture_output=True, text=True, errors="replace", timeout=_ANSWER_S, env=env
        )
    except subprocess.TimeoutExpired:
        raise ShoalError(f"{argv[0]} gave no answer within {_ANSWER_S:g} s") from None
    except OSError as error:
        raise ShoalError(f"cannot start {argv[0]}: {error.strerror}") from None
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit {done.returncode} without a word"]
        raise ShoalError("\n".join(last[-_SHOWN:]))
    return done.stdout.strip()
