"""Jsonl: the run's memory, one event per line in `metrics.jsonl`."""

from __future__ import annotations

import json

from shoal.base.errors import ShoalError
from shoal.base.files import write_whole
from shoal.base.run import Run
from shoal.report.sinks import Event, Sink


class Jsonl(Sink):
    """Appends each event as one line, handed to the system at once, so that a killed run keeps what it reported.

    `resume_step` is the step (optimizer steps done) of the checkpoint the training goes on from: what was reported
    after it will be trained, and reported, again, and is dropped. None: training begins anew, and so does the file.
    """

    def __init__(self, run: Run, *, resume_step: int | None) -> None:
        self._path = run.metrics_file
        try:
            kept = [] if resume_step is None else _lines_up_to(run, resume_step)
            write_whole(self._path, b"".join(kept))
            self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise ShoalError(f"{self._path}: cannot be written ({error.strerror})") from None

    def write(self, event: Event) -> None:
        try:
            self._file.write(json.dumps(event, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise ShoalError(f"{self._path}: cannot be written ({error.strerror})") from None

    def close(self) -> None:
        self._file.close()


def _lines_up_to(run: Run, step: int) -> list[bytes]:
    """The lines, as they were written, of events up to `step`; ends and lines cut by a crash are left out."""
    if not run.metrics_file.exists():
        return []
    kept = []
    for line in run.metrics_file.read_bytes().splitlines(keepends=True):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if line.endswith(b"\n") and event["step"] <= step and event["event"] != "end":
            kept.append(line)
    return kept
