"""Checkpoints: whole or absent, checked by their sums, free of the number of workers, readable without pickle."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load as load_safetensors
from safetensors.torch import save_file

from shoal.base.errors import ShoalError
from shoal.base.files import folder_whole
from shoal.base.run import MANIFEST, Run, resolve
from shoal.step.gang import Gang

MODEL, EMA, STATE = "model.safetensors", "ema.safetensors", "state.pt"
_FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found sound."""

    path: Path
    manifest: dict[str, Any]
    model: dict[str, torch.Tensor]
    ema: dict[str, torch.Tensor] | None
    state: dict[str, Any]
    """optimizer, meters, progress; empty when only weights were asked for."""


def save(
    path: Path,
    *,
    model: dict,
    ema: dict | None,
    state: dict[str, Any],
    manifest: dict[str, Any],
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Writes a checkpoint folder aside, flushes it, gives it its name. ShoalError when the disk is full.

    files: what else lies in it, by name."""
    try:
        with folder_whole(path) as aside:
            for name, weights in ((MODEL, model), (EMA, ema)):
                if weights is not None:
                    save_file({key: _own(tensor) for key, tensor in weights.items()}, aside / name)
            torch.save(state, aside / STATE)
            for name, data in files.items():
                (aside / name).write_bytes(data)
            sums = {}
            for entry in aside.iterdir():
                _flush(entry)
                sums[entry.name] = {"bytes": entry.stat().st_size, "sha256": _sum(entry)}
            manifest = {"format": _FORMAT, **manifest, "files": sums}
            with open(aside / MANIFEST, "w") as file:
                json.dump(manifest, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if full or isinstance(error, (OSError, RuntimeError)) or type(error).__name__ == "SafetensorError":
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
            raise ShoalError(
                f"{path}: the checkpoint could not be written ({reason}); nothing half-written was left, "
                "earlier checkpoints are untouched"
            ) from error
        raise


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """In memory of its own and in the plain layout, as safetensors wants it."""
    return tensor.detach().cpu().contiguous().clone()


def _flush(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _sum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def prune(run: Run, step: int, keep_last: int, best_step: int | None) -> None:
    """After saving `step`: removes all checkpoints but the newest up to it, and the best."""
    for old in [saved for saved in run.steps_saved() if saved <= step][:-keep_last]:
        if old != best_step:
            shutil.rmtree(run.checkpoint(old), ignore_errors=True)


def sweep(run: Run) -> None:
    """Removes what a killed process left half-written. Only for the owner of the run's lock."""
    for left in (*run.checkpoints.glob(".step-*.aside"), *run.checkpoints.glob(".step-*.old")):
        shutil.rmtree(left, ignore_errors=True)


def mark_best(run: Run, step: int, top1: float) -> None:
    """Notes which checkpoint is the best. ShoalError when the disk is full."""
    try:
        run.write_best(step, top1)
    except OSError as error:
        raise ShoalError(f"{run.best}: cannot be written ({error.strerror})") from error


def fault(path: Path) -> str | None:
    """What is wrong with a checkpoint folder, or None when all its sums agree."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
    except FileNotFoundError:
        return f"no {MANIFEST}"
    except (OSError, ValueError):
        return f"{MANIFEST} cannot be read"
    if manifest.get("format") != _FORMAT:
        return f"format {manifest.get('format')!r}, this Shoal reads {_FORMAT}"
    for name, told in manifest["files"].items():
        try:
            size = (path / name).stat().st_size
            if size != told["bytes"]:
                return f"{name} has {size} of {told['bytes']} bytes"
            if _sum(path / name) != told["sha256"]:
                return f"the checksum of {name} is wrong"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return None


def step_of(path: Path) -> int:
    """Steps done when a sound checkpoint was saved."""
    return json.loads((path / MANIFEST).read_text())["step"]


def newest_sound(run: Run, tell: Callable[[str], None], *, own: bool = False) -> Path | None:
    """The newest checkpoint whose sums agree; `tell` hears of each damaged one passed over.

    own: the run is about to go on, so damaged later ones are renamed; they would pass for its continuation.
    """
    damaged = []
    for step in reversed(run.steps_saved()):
        path = run.checkpoint(step)
        wrong = fault(path)
        if wrong is None:
            for later in damaged if own else ():
                later.rename(later.with_name(f"{later.name}.damaged"))
            return path
        damaged.append(path)
        tell(f"{path}: damaged ({wrong}); falling back to an earlier checkpoint")
    return None


def read(path: Path, *, weights_only: bool = False) -> Checkpoint:
    """Reads one checkpoint. ShoalError when it is damaged."""
    wrong = fault(path)
    if wrong is not None:
        raise ShoalError(f"{path}: damaged checkpoint: {wrong}")
    names = (MODEL, EMA) if weights_only else (MODEL, EMA, STATE)
    return _parse(path, {name: _bytes(path / name) for name in (*names, MANIFEST)})


def read_weights(path: Path) -> Checkpoint:
    """The weights of the checkpoint that `path` means, as `resolve`; of a run that is still being written, too, whose
    best may be replaced meanwhile."""
    while True:
        found = resolve(path)
        try:
            return read(found, weights_only=True)
        except Exception:
            if found == path or found.exists():
                raise


def share(path: Path | None, gang: Gang) -> Checkpoint | None:
    """The first worker's checkpoint at every rank, so that only its host needs the files. A collective."""
    files = {}
    for name in (MANIFEST, MODEL, EMA, STATE):
        files[name] = gang.broadcast_bytes(_bytes(path / name) if path is not None and gang.leads else None)
        if name == MANIFEST and not files[name]:
            return None
    return _parse(path or Path("of rank 0"), files)


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _parse(path: Path, files: dict[str, bytes]) -> Checkpoint:
    state = files.get(STATE)
    return Checkpoint(
        path,
        json.loads(files[MANIFEST]),
        load_safetensors(files[MODEL]),
        load_safetensors(files[EMA]) if files[EMA] else None,
        torch.load(io.BytesIO(state), weights_only=True, map_location="cpu") if state else {},
    )
