"""A job of two sleeping workers that an engine runs on two hosts, to be struck."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command import CPU
from jobs import wait_for
from processes import command, environment, everybody, lives, name, parent

from lag import Lag

TRAINING = ("strategy.deterministic=true", "strategy.threads=1", "length=12ep", "save_every=2ep")
"""A training of digits that is the same everywhere."""
WORKERS = os.environ.get("SHOAL_TEST_WORKERS", "2")
"""How many it has on an engine."""
READY_S, SILENCE_S = 30.0, 3.0
rest = pytest.mark.skipif(os.environ.get("SHOAL_ENGINES") != "all", reason="one of the longer ones: make engines")
"""Marks what `make engines` plays beside the rest of the suite."""
GONE_S = 5.0
"""What all of a job may take to be gone once its engine knows."""


@dataclass
class Struck:
    """`process` is the command that a person would have started."""

    process: subprocess.Popen[bytes]
    folder: Path

    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")

    def tagged(self) -> list[int]:
        """All processes of the job, on all hosts, but for this command itself."""
        known = {pid: environment(pid) for pid in everybody()}
        ids = {one["SHOAL_JOB"] for one in known.values() if one.get("MARK") == str(self.folder) and "SHOAL_JOB" in one}
        return [pid for pid, one in known.items() if one.get("SHOAL_JOB") in ids and lives(pid)]

    def workers(self) -> dict[int, int]:
        """Rank -> pid."""
        return {int(environment(pid)["SHOAL_RANK"]): pid for pid in self.tagged() if name(pid) == "sleep"}

    def agent_of(self, rank: int) -> int:
        return parent(self.workers()[rank])

    def end(self, limit_s: float = 30.0) -> int:
        return self.process.wait(limit_s)

    def seconds_until_gone(self, limit_s: float = GONE_S, ids: Sequence[int] = ()) -> float:
        """AssertionError names what is left."""
        began = time.monotonic()
        with Lag() as lag:
            while left := [pid for pid in ids or self.tagged() if lives(pid)]:
                late = time.monotonic() - began >= lag.allows(limit_s)
                assert not late, f"{[command(pid) for pid in left]}\n{self.said()}"
                time.sleep(0.01)
        return time.monotonic() - began


@contextlib.contextmanager
def sleeping(
    argv: Callable[..., Sequence[str]], folder: Path, *words: str, waits: bool = True, **env: str
) -> Iterator[Struck]:
    """`shoal launch WORDS -- sleep` of two workers, once both sleep. `argv`: how `shoal` is started there;
    `waits`: it stays as long as the job."""
    folder.mkdir(parents=True, exist_ok=True)
    job = ["launch", *words, "-n", "2", "--env", f"MARK={folder}", "--grace", "3s", "--silence", f"{SILENCE_S:g}s"]
    job += ["--log-dir", str(folder / "run"), "--", "sleep", "600"]
    with open(folder / "said", "ab") as said:
        process = subprocess.Popen(
            argv(*job),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            cwd=folder,
            env={**os.environ, **CPU, **env},
        )
    struck = Struck(process, folder)
    try:
        try:
            wait_for(lambda: len(struck.workers()) == 2, READY_S, "no workers", process if waits else None)
        except AssertionError as error:
            raise AssertionError(f"{error}: {struck.said()}") from None
        yield struck
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait()
        for pid in struck.tagged():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def note(engine: str, program: str, struck: str, seconds: float) -> None:
    """A row for docs/measured.md, in the file that SHOAL_NOTES names."""
    if path := os.environ.get("SHOAL_NOTES"):
        with open(path, "a") as file:
            file.write(f"{engine} {program} {struck} {seconds:.2f}\n")


def cases(all_of: Iterable[Any], always: Container[Any]) -> list[Any]:
    """Parameters, of which those that are not `always` played belong to the rest."""
    marked = [(one if isinstance(one, tuple) else (one,), () if one in always else (rest,)) for one in all_of]
    return [pytest.param(*one, marks=marks, id="-".join(part.__name__ for part in one)) for one, marks in marked]
