"""Probe: a minute or less of the recipe's own work on this machine, in processes of their own. Torch stays outside."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from shoal.base.errors import ShoalError, UsageError
from shoal.base.host import cores, gpus
from shoal.forecast.calibration import Calibration
from shoal.forecast.probing.task import ERROR, FOUND, TASK, Task
from shoal.launch.leash import Leash
from shoal.recipe.load import dump
from shoal.recipe.recipe import Recipe

LIMIT_S = 60.0
_TAIL = 400
"""Characters of what a process said that are shown when it fails."""


def measure(
    recipe: Recipe, shard_images: Sequence[int], *, together: int = 1, threads: int | None = None,
    servers: bool = False, compute_s: float = 6.0, limit_s: float = LIMIT_S,
) -> Calibration:  # fmt: skip
    """What one worker of this recipe does on this machine while so many compute `together`.

    shard_images: the sizes that will be asked for. ShoalError when there is no answer within limit_s.
    """
    strategy: Any = recipe.strategy
    share = 1 if strategy.deterministic else max(1, cores() // together)
    chosen: int = threads or strategy.threads or share
    together = min(together, gpus() or together)
    task = Task(
        recipe=dump(recipe),
        shard_images=sorted({min(shard_images), max(shard_images)}),
        together=together,
        threads=chosen,
        servers=servers,
        compute_s=compute_s,
        limit_s=limit_s,
        secret=secrets.token_hex(32) if servers else "",
    )
    found = _run(task)
    others = f" while {together} computed" if together > 1 else ""
    source = f"a probe of this machine ({chosen} thread{'s' if chosen > 1 else ''} a worker{others})"
    return msgspec.structs.replace(found, source=source)


def size(recipe: Recipe, limit_s: float = LIMIT_S) -> Calibration:
    """How large the recipe's model and data are; nothing is computed."""
    task = Task(
        recipe=dump(recipe), shard_images=[1], together=1, threads=1, servers=False, only_size=True, limit_s=limit_s
    )
    return _run(task)


def _run(task: Task) -> Calibration:
    with tempfile.TemporaryDirectory(prefix="shoal-probe-") as name:
        folder = Path(name)
        folder.chmod(0o700)
        (folder / TASK).write_bytes(msgspec.json.encode(task))
        children: list[tuple[subprocess.Popen, Leash]] = []
        try:
            for rank in range(task.processes + task.servers):
                children.append(_start(folder, rank))
            _wait([child for child, _ in children[: task.processes]], folder, task.limit_s)
            return msgspec.json.decode((folder / FOUND).read_bytes(), type=Calibration)
        finally:
            for child, leash in children:
                child.kill()
                child.wait()
                leash.drop()


def _start(folder: Path, rank: int) -> tuple[subprocess.Popen, Leash]:
    leash = Leash()
    with open(folder / f"said-{rank}", "wb") as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "shoal.forecast.probing", str(folder), str(rank)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,  # Ctrl-C is this process's to act on
            preexec_fn=leash.arm,
            pass_fds=leash.descriptors,
        )
    leash.started()
    return child, leash


def _wait(children: list[subprocess.Popen], folder: Path, limit_s: float) -> None:
    """Until all have ended well; the first that fails speaks."""
    until = time.monotonic() + limit_s
    while any(child.poll() is None for child in children):
        for rank, child in enumerate(children):
            if child.returncode:
                raise _failed(folder, rank, child.returncode)
        if time.monotonic() > until:
            raise ShoalError(
                f"the probe did not end within {limit_s:g} s: this machine is too busy or too slow for the recipe's "
                "steps; say what a worker computes with --rate IMAGES/S, or measure a study and use --from STUDY"
            )
        time.sleep(0.02)
    for rank, child in enumerate(children):
        if child.returncode:
            raise _failed(folder, rank, child.returncode)


def _failed(folder: Path, rank: int, code: int) -> ShoalError:
    if (folder / ERROR).exists():
        kind = UsageError if code == UsageError.exit_code else ShoalError
        return kind(f"{(folder / ERROR).read_text()} (the probe needs the recipe's data; data=synthetic has none)")
    said = (folder / f"said-{rank}").read_text(errors="replace").strip().splitlines()
    last = json.dumps(said[-1][-_TAIL:]) if said else "nothing was said"
    return ShoalError(f"process {rank} of the probe ended with {code}: {last}")
