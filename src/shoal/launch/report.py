"""Report: what a failing process tells its agent, one JSON line on a pipe."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from dataclasses import field as _field

from shoal.base.errors import FAILED

CHANNEL = "SHOAL_REPORT_FD"
"""The variable that holds the number of the pipe's descriptor."""

_LONGEST = 20_000  # characters of a traceback; the whole stays in the log


@dataclass(frozen=True)
class Report:
    """An error as the failing process saw it."""

    error: str
    """One line."""
    traceback: str = ""
    """Empty for errors that explain themselves."""
    collateral: bool = False
    """It failed only because another process of the job vanished."""
    exit_code: int = FAILED
    time: float = _field(default_factory=time.time)
    """Unix seconds."""

    @staticmethod
    def parse(line: bytes) -> Report | None:
        """None for lines of another kind and for damaged ones: a broken report must not break the agent."""
        try:
            said = json.loads(line)
            if said["kind"] != "error":
                return None
            return Report(
                error=str(said["error"]),
                traceback=str(said["traceback"]),
                collateral=bool(said["collateral"]),
                exit_code=int(said["exit_code"]),
                time=float(said["time"]),
            )
        except (ValueError, KeyError, TypeError):
            return None


def report_error(error: str, *, traceback: str = "", collateral: bool = False, exit_code: int = FAILED) -> None:
    """Tells the agent, if there is one, why this process is about to end. Never raises: the error itself matters more.

    `error` is one line, `traceback` is empty where that line says it all; `collateral` is true when this process
    failed only because a peer vanished.
    """
    try:
        report = Report(error, traceback[-_LONGEST:], collateral, exit_code)
        line = json.dumps({"kind": "error", **asdict(report)}) + "\n"
        data = memoryview(line.encode())
        while data:
            data = data[os.write(int(os.environ[CHANNEL]), data) :]
    except (OSError, KeyError, ValueError, TypeError):
        pass
