"""The Python API: what the command line does, with Python's values. `shoal.train` and `shoal.load` are these."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from shoal.base.errors import DONE, INTERRUPTED, REQUEUE, USAGE, ShoalError, UsageError
from shoal.base.run import Run
from shoal.launch.leash import Leash

if TYPE_CHECKING:
    import torch

    from shoal.inference.classifier import Classifier

_STOP_S = 600.0
"""How long a training that was interrupted may take to save its state."""


def train(
    recipe: str | Path | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    workers: int | None = None,
    run: str | Path | Run | None = None,
    show: bool = True,
) -> Run:
    """Trains as `shoal train RECIPE KEY=VALUE…` does, in processes of its own, and returns the run.

    recipe: a built-in recipe's name, a path, or keys and values as a recipe file has them.
    overrides: ["optim.lr=0.1"] or {"optim.lr": 0.1}. workers: absent: one, or one per GPU.
    run: the run's folder; a folder of an unfinished run goes on. Absent: runs/RECIPE-TIME.
    show: print what the training says, line by line.

    UsageError: a faulty recipe, all faults at once. ShoalError: the training failed; the message is its own.
    KeyboardInterrupt stops it in good order, and the state is saved.
    """
    from shoal.recipe.find import find
    from shoal.recipe.load import load as load_recipe
    from shoal.recipe.load import parse

    changes = _words(overrides)
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        if isinstance(recipe, Mapping):
            from shoal.recipe import yaml12

            file, text = Path(folder) / "recipe.yaml", yaml12.write(dict(recipe))
            parse(text, "recipe", changes)
            file.write_text(text, encoding="utf-8")
            recipe = file
        name = find(str(recipe)).stem
        load_recipe(str(recipe), changes)  # faults are raised here, and nothing is begun
        made = run if isinstance(run, Run) else Run(Path(run)) if run is not None else _fresh(name)
        argv = [sys.executable, "-m", "shoal", "train", str(recipe), *changes, "--run", str(made.folder)]
        argv += ["-n", str(workers)] if workers is not None else []
        code, said = _follow(argv, show)
    if code == DONE:
        return made
    if code in (REQUEUE, INTERRUPTED):
        raise KeyboardInterrupt(said)
    raise (UsageError if code == USAGE else ShoalError)(said)


def load(checkpoint: str | Path | Run, *, raw: bool = False, device: str | torch.device | None = None) -> Classifier:
    """The model of a checkpoint or a run (its best), as a torch module with its preprocessing and class names.

    raw: the weights themselves where the checkpoint has a moving average. device: absent: the first CUDA device, else
    the CPU. UsageError: no checkpoint there; ShoalError: a damaged one.
    """
    from shoal.inference.classifier import load as load_classifier

    path = checkpoint.folder if isinstance(checkpoint, Run) else Path(checkpoint)
    return load_classifier(path, raw=raw, device=device)


def _fresh(name: str) -> Run:
    """A run folder that nobody else takes meanwhile."""
    while True:
        run = Run.named_after(name)
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            run.folder.mkdir()
            return run
        except FileExistsError:
            continue


def _words(overrides: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """KEY=VALUE, as the command line has them."""
    if isinstance(overrides, str):
        raise UsageError(f"overrides: expected a list as in ['{overrides}'], or a dict")
    if not isinstance(overrides, Mapping):
        return list(overrides)
    from shoal.recipe.load import words

    return words(overrides)


def _follow(argv: list[str], show: bool) -> tuple[int, str]:
    """Runs a command and prints its lines as they come, in a notebook too. Its exit code, and what went wrong."""
    lines: deque[str] = deque(maxlen=1000)
    leash = Leash()
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # a terminal's Ctrl-C comes here alone, and goes on from here once
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        pass_fds=leash.descriptors,
        preexec_fn=leash.arm,  # it ends when this process does
    )
    leash.started()
    assert process.stdout is not None

    def read(stream: IO[str]) -> None:
        for line in stream:
            lines.append(line.rstrip())
            if show:
                print(line, end="", flush=True)

    try:
        try:
            read(process.stdout)
        except KeyboardInterrupt:
            process.terminate()
            read(process.stdout)
            process.wait(_STOP_S)
            raise
        code = process.wait()
        told = [line.partition(": ")[2] for line in lines if line.startswith(("ERROR: ", "shoal: "))]
        return code, "\n".join(dict.fromkeys(told)) or next(filter(None, reversed(lines)), f"exit {code}")
    finally:
        process.stdout.close()
        if process.poll() is None:
            process.kill()
            process.wait()
        leash.drop()
