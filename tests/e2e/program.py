"""`shoal` as people start it, a process of its own, and what is left of it afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

TAG = "E2E_TAG"
"""A variable that every process below a program inherits; its value is found again in /proc."""
SHOAL = (sys.executable, "-m", "shoal")
LIMIT_S = 400.0
CPU = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
"""These tests count workers, not devices: three of them fit on any machine."""
T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    def __str__(self) -> str:  # what pytest shows where an assertion names the result
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


@dataclass(frozen=True)
class Finished:
    """A run folder and what the command that made it said."""

    folder: Path
    result: Result


class Program:
    """A started command: its workers, its signals, its result."""

    def __init__(self, folder: Path, *argv: str, env: Mapping[str, str] | None = None) -> None:
        """folder: where its output goes, in files, so that no full pipe can stop it."""
        self.tag = uuid.uuid4().hex
        folder.mkdir(parents=True, exist_ok=True)
        self._out, self._err = folder / f"{self.tag}.out", folder / f"{self.tag}.err"
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(
                argv,
                env={**os.environ, **CPU, **(env or {}), TAG: self.tag},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def alive(self) -> list[int]:
        """Processes with this program's tag, itself included; the dead that nobody reaped do not count."""
        return [pid for pid, env in _environments() if env.get(TAG) == self.tag]

    def workers(self) -> dict[int, int]:
        """Rank -> process id."""
        own = ((pid, env) for pid, env in _environments() if env.get(TAG) == self.tag)
        return {int(env["SHOAL_RANK"]): pid for pid, env in own if "SHOAL_RANK" in env}

    def worker(self, rank: int) -> int:
        return wait_for(lambda: self.workers().get(rank), f"worker {rank} to start")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def result(self, limit_s: float = LIMIT_S) -> Result:
        """Waits for its end; AssertionError, with what it had to say, when that does not come."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not done after {limit_s} s\n{self._said(-1)}") from None
        return self._said(code)

    def err(self) -> str:
        return self._err.read_text()

    def kill(self) -> None:
        """Leaves nothing behind, whatever the program does."""
        for pid in self.alive():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def _said(self, code: int) -> Result:
        return Result(code, self._out.read_text(), self._err.read_text())


@contextmanager
def shoal(folder: Path, *args: str | Path, env: Mapping[str, str] | None = None) -> Iterator[Program]:
    """`shoal ARGS`, killed at the end of the block if it still runs."""
    program = Program(folder, *SHOAL, *map(str, args), env=env)
    try:
        yield program
    finally:
        program.kill()


def run_shoal(folder: Path, *args: str | Path, env: Mapping[str, str] | None = None) -> Result:
    """`shoal ARGS` to its end. AssertionError when a process is left over."""
    with shoal(folder, *args, env=env) as program:
        result = program.result()
        assert program.alive() == [], result
        return result


def wait_for(true: Callable[[], T | None], what: str, limit_s: float = LIMIT_S) -> T:
    """The first true value of `true`, asked every few milliseconds."""
    limit = time.monotonic() + limit_s
    while not (value := true()):
        assert time.monotonic() < limit, f"waited {limit_s} s in vain for {what}"
        time.sleep(0.003)
    return value


def _environments() -> Iterator[tuple[int, dict[str, str]]]:
    for name in filter(re.compile(r"\d+").fullmatch, os.listdir("/proc")):
        try:
            data = Path("/proc", name, "environ").read_bytes()
        except OSError:
            continue
        pairs = (item.partition("=") for item in data.decode(errors="replace").split("\0") if "=" in item)
        yield int(name), {key: value for key, _, value in pairs}
