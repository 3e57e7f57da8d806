"""Run: one folder per training, and the only place that knows its file names."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError, UsageError
from shoal.base.files import write_whole

MANIFEST = "manifest.json"
"""What a checkpoint's folder says of itself; written last."""
_CHECKPOINT = re.compile(r"^step-(\d{8})$")
_KIND = re.compile(rb'\{"event": "(\w+)"')


@dataclass(frozen=True)
class Run:
    """A run folder. Holds names only; nothing is read or made before a verb is called."""

    folder: Path

    @staticmethod
    def named_after(recipe: str) -> Run:
        """A fresh name below `runs/`: RECIPE-TIME, with a number behind it where two start in the same second."""
        name = Path(recipe).name.removesuffix(".yaml").removesuffix(".yml")
        base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        folder, count = base, 1
        while folder.exists():
            count += 1
            folder = base.with_name(f"{base.name}-{count}")
        return Run(folder)

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.yaml"

    @property
    def plan(self) -> Path:
        return self.folder / "plan.txt"

    @property
    def environment(self) -> Path:
        return self.folder / "environment.json"

    @property
    def metrics_file(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.folder / "tensorboard"

    @property
    def curves(self) -> Path:
        return self.folder / "curves.png"

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def trace(self) -> Path:
        """Some steps of all workers on one time line."""
        return self.folder / "trace.json.gz"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def best(self) -> Path:
        """Names the best checkpoint so far: {"step": 400, "top1": 0.98}."""
        return self.checkpoints / "best.json"

    @property
    def lock(self) -> Path:
        return self.folder / ".lock"

    def log(self, role: str, rank: int) -> Path:
        return self.folder / "logs" / f"{role}-{rank}.log"

    def agent_log(self, host: str) -> Path:
        """What the supervisor on a host said of its own failure."""
        return self.folder / "logs" / f"agent-{re.sub(r'[^A-Za-z0-9.-]', '-', host)}.log"

    @property
    def submitted(self) -> Path:
        """Which engine it was handed to, and the job's number there: {"launcher": {…}, "number": "12"}."""
        return self.folder / "submitted.json"

    def engine_log(self, program: str) -> Path:
        """What a program of a cluster's engine said, such as mpirun."""
        return self.folder / "logs" / f"{program}.log"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    def predictions(self, step: int) -> Path:
        """What the validation after `step` said of each image; beside the best checkpoint."""
        return self.checkpoint(step) / "predictions.npz"

    def steps_saved(self) -> list[int]:
        """Steps with a checkpoint folder, oldest first; whether each is sound is for the reader to find out."""
        if not self.checkpoints.is_dir():
            return []
        found = (_CHECKPOINT.match(entry.name) for entry in self.checkpoints.iterdir() if entry.is_dir())
        return sorted(int(match[1]) for match in found if match)

    @property
    def began(self) -> bool:
        return self.recipe.exists()

    @property
    def trained(self) -> bool:
        """Whether a training was begun here, and not only its recipe written; it may have died at once."""
        return self.recipe.is_file() and (self.metrics_file.is_file() or self.log("worker", 0).parent.is_dir())

    def make(self) -> None:
        """Makes the folder; UsageError when its place cannot hold one."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--run {self.folder}: cannot be made ({error.strerror})") from None

    def claim(self, *, fresh: bool = False) -> RunLock:
        """Takes the folder for this process until it ends, by whatever cause; another's claim is an error naming it.

        fresh: FileExistsError where the folder is there already.
        """
        if fresh:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir()
        self.make()
        return RunLock.on(self.lock, f"--run {self.folder}", "run")

    def claimed_by(self) -> tuple[int, str] | None:
        """The process that holds the claim, and its host; None where nobody does, or nobody can be read."""
        import fcntl

        try:
            handle = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except OSError:
            match = re.fullmatch(r"pid (\d+) on (\S+)", os.read(handle, 300).decode(errors="replace").strip())
            return (int(match[1]), match[2]) if match else None
        finally:
            os.close(handle)

    def read_best(self) -> dict[str, float] | None:
        try:
            return json.loads(self.best.read_text())
        except (OSError, ValueError):
            return None

    def write_best(self, step: int, top1: float) -> None:
        write_whole(self.best, json.dumps({"step": step, "top1": top1}))

    def metrics(self, event: str | None = None) -> list[dict[str, Any]]:
        """What the training reported so far, oldest first: all events, or those of one kind (`train`, `epoch`, `val` …
        of docs/metrics.md); rows that `pandas.DataFrame` takes as they are."""
        return self.read_metrics(None if event is None else (event,))

    def read_metrics(self, kinds: Collection[str] | None = None) -> list[dict[str, Any]]:
        """All events so far, or those of some kinds, oldest first; a last line cut by a crash is left out.

        ShoalError names a damaged line (among those of these kinds, which are found without reading the others)."""
        if not self.metrics_file.exists():
            return []
        lines = self.metrics_file.read_bytes().splitlines()  # bytes: a cut may lie inside a character
        events = []
        for number, line in enumerate(lines, 1):
            kind = _KIND.match(line)
            if kinds is not None and kind and kind[1].decode() not in kinds:
                continue
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if isinstance(event, dict):
                if kinds is None or event.get("event") in kinds:
                    events.append(event)
            elif number < len(lines):
                raise ShoalError(f"{self.metrics_file}:{number}: not a JSON line of an event")
        return events


def resolve(path: Path) -> Path:
    """The checkpoint folder a person means: itself, or the best (else the newest) of a Run folder."""
    if (path / MANIFEST).exists():
        return path
    run = Run(path)
    best = run.read_best()
    if best and run.checkpoint(int(best["step"])).is_dir():
        return run.checkpoint(int(best["step"]))
    if steps := run.steps_saved():
        return run.checkpoint(steps[-1])
    if run.began:
        raise UsageError(f"{path}: this run has saved no checkpoint yet")
    raise UsageError(f"{path}: {'neither a checkpoint nor a run folder' if path.exists() else 'no such folder'}")


class RunLock:
    """An exclusive claim on a folder; the system drops it when the process ends."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    @staticmethod
    def on(file: Path, named: str, what: str) -> RunLock:
        """The claim that `file` stands for. UsageError, about `named`, where another `what` holds it."""
        import fcntl

        try:
            handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(f"{named}: not writable ({error.strerror})") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 200).decode(errors="replace").strip() or "another process"
            os.close(handle)
            raise UsageError(
                f"{named}: in use by another {what} ({owner}); wait for it or choose another folder"
            ) from None
        except OSError as error:
            os.close(handle)
            raise UsageError(f"{named}: its file system cannot lock files ({error.strerror})") from None
        os.ftruncate(handle, 0)
        os.write(handle, f"pid {os.getpid()} on {socket.gethostname()}".encode())
        return RunLock(handle)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
