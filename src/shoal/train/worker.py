"""Worker: one process of a training, from its World to its exit code."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from shoal.base.beats import heard
from shoal.base.errors import DONE, FAILED, INTERRUPTED, ShoalError, UsageError
from shoal.base.files import write_whole
from shoal.base.run import Run
from shoal.base.world import World
from shoal.kvstore.client import RolledBack
from shoal.launch.pulse import LONG, MEETS, OPENS, Pulse
from shoal.launch.report import report_error
from shoal.recipe.load import Loaded, flat
from shoal.recipe.recipe import Recipe
from shoal.report.sinks import Event, Sink, Sinks
from shoal.report.sinks.console import Plain, console_sink
from shoal.report.sinks.jsonl import Jsonl
from shoal.report.sinks.tensorboard import TensorBoard
from shoal.step.gang import Gang
from shoal.step.nonfinite import NonFiniteError
from shoal.train import checkpoint, compiler
from shoal.train.machine import Machine, tensor_cores
from shoal.train.progress import Progress
from shoal.train.setup import Data, Setup, manifest, open_data
from shoal.train.signals import EXIT_OF_ASK, StopSignals
from shoal.train.teacher import check_teacher
from shoal.train.trainer import Trainer


def work(
    loaded: Loaded,
    run: Run,
    world: World | None,
    signals: StopSignals,
    *,
    resume: str,
    began: float,
    pulse: Pulse | None = None,
) -> int:
    """Trains as one worker of `world` (None: the only one). Returns the process's exit code; errors are raised.

    resume: `auto` (the run's newest sound checkpoint, if any), `never`, or a checkpoint's path.
    began: unix time at which the command was started, for the time to the first step (of a
    rollback: when all went back).
    """
    recipe, pulse = loaded.recipe, pulse or Pulse()
    machine = Machine.choose(recipe.strategy, world)  # type: ignore[arg-type]
    machine.use(deterministic=recipe.strategy.deterministic)  # type: ignore[attr-defined]
    pulse.beat(OPENS, 0, LONG)
    with heard(lambda: pulse.beat(OPENS, 0, LONG)):
        data = open_data(recipe)
    pulse.beat(MEETS, 0, LONG)
    listen = os.environ.get("SHOAL_LISTEN_FD")
    strategy: Any = recipe.strategy
    gang = strategy.join(world, machine.device, listen_fd=int(listen) if listen else None)
    try:
        while True:
            try:
                return _train(loaded, run, world, signals, gang, data, machine, pulse, resume=resume, began=began)
            except RolledBack as error:
                print(f"WARNING: {error}; all go on from the newest checkpoint", file=sys.stderr)
                resume, began = "auto", time.time()
    finally:
        gang.close()


def _train(
    loaded: Loaded,
    run: Run,
    world: World | None,
    signals: StopSignals,
    gang: Gang,
    data: Data,
    machine: Machine,
    pulse: Pulse,
    *,
    resume: str,
    began: float,
) -> int:
    recipe = loaded.recipe
    pulse.beat("sets up", 0, LONG)
    notes: list[str] = []
    saved = _saved(run, resume, gang, notes.append)
    if not recipe.model.compile:
        compiler.leave_out()
    setup = Setup.of(recipe, gang, data, pretrained=saved is None, beat=lambda: pulse.beat("asks the teacher", 0, LONG))
    if saved is not None:
        check_teacher(saved.manifest, setup.teacher, saved.path)
    same_run = resume == "auto" or run.folder.resolve() in Path(resume).resolve().parents
    progress = Progress.of(saved.state["progress"]).over(setup.clock.span, same_run=same_run) if saved else None
    resumed = progress.step if progress else None
    with Speaker(lambda step: _sinks(recipe, run, world, step), leads=gang.leads, step=resumed) as sink:
        trainer = Trainer(setup, run, sink, manifest(recipe, loaded.name, data, machine.threads, setup.teacher), pulse)
        if saved is not None and progress is not None:
            notes += trainer.load(saved, progress, same_run=same_run)
        parameters = setup.rig.num_parameters
        if gang.leads:
            write_whole(run.environment, json.dumps(machine.describe(), indent=1))
            for text in [*notes, *setup.notes]:
                sink.write({"event": "note", "step": setup.clock.step, "level": "warning", "text": text})
            sink.write(_start(loaded, setup, machine, parameters, resumed=saved is not None))
        with signals.training():
            asked = trainer.fit(signals)
        pulse.beat("ends", setup.clock.step)
        trainer.end_event(began)
        setup.rig.close()
        gang.barrier()
    return EXIT_OF_ASK.get(asked, DONE)


def _saved(run: Run, resume: str, gang: Gang, tell: Callable[[str], None]) -> checkpoint.Checkpoint | None:
    path = None
    if gang.leads:
        checkpoint.sweep(run)
        if resume == "auto":
            path = checkpoint.newest_sound(run, tell, own=True)
            if path is None and run.steps_saved():
                raise ShoalError(f"{run.checkpoints}: every checkpoint is damaged; start anew in another --run folder")
        elif resume != "never":
            path = _chosen(Path(resume), run, tell)
    return checkpoint.share(path, gang)


def _chosen(path: Path, run: Run, tell: Callable[[str], None]) -> Path:
    """The sound checkpoint that `path` (a checkpoint, or a run: its newest) names, if `run` can go on from it."""
    if Run(path).steps_saved():
        found = checkpoint.newest_sound(Run(path), tell)
        wrong = None if found else "none of the run is sound"
    else:
        found = checkpoint.resolve(path)
        wrong = checkpoint.fault(found)
    if found is None or wrong:
        raise ShoalError(f"{path}: damaged checkpoint: {wrong}")
    saved = run.steps_saved()
    if saved and saved[-1] > checkpoint.step_of(found):
        raise UsageError(
            f"--resume {path}: {run.folder} holds later checkpoints (up to step {saved[-1]}), which would pass for the "
            "continuation of it; choose another --run folder, or leave out --resume to go on from the newest"
        )
    return found


class Speaker(Sink):
    """Where the first worker's events go. When it has died, the next one goes on where its own first event is."""

    def __init__(self, open_at: Callable[[int | None], Sink], *, leads: bool, step: int | None) -> None:
        self._open_at = open_at
        self._sink = open_at(step) if leads else None

    def write(self, event: Event) -> None:
        self._sink = self._sink or self._open_at(event["step"])
        self._sink.write(event)

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()


def _sinks(recipe: Recipe, run: Run, world: World | None, step: int | None) -> Sink:
    """A worker without an agent keeps its own log."""
    sinks: list[Sink] = [console_sink(os.environ)]
    if world is None or world.launcher != "shoal":
        run.log("worker", 0).parent.mkdir(parents=True, exist_ok=True)
        sinks.append(Plain(open(run.log("worker", 0), "a", encoding="utf-8")))  # noqa: SIM115  (closed with the process)
    board = TensorBoard(run, resume_step=step, hparams=flat(recipe))
    return Sinks([*sinks, Jsonl(run, resume_step=step), board])


def _start(loaded: Loaded, setup: Setup, machine: Machine, parameters: int, *, resumed: bool) -> dict:
    recipe, clock, workers = setup.recipe, setup.clock, setup.gang.num_ranks
    why = [*machine.why]
    shard = -(-clock.span.batch // setup.cut.shards)
    why += tensor_cores(recipe.precision.name, machine.device, shard, recipe.model.channels_last)
    if decoder := getattr(recipe.data, "decoder", None):
        why.append(decoder.why())
    why += [*setup.data.told, *setup.rig.told]
    if recipe.shards == "auto":
        why.append(f"shards: {recipe.shards_for(workers)} (auto; another number of workers would train another model)")
    if recipe.batch is None:
        factors = f"batch_per_worker {recipe.batch_per_worker} x {workers} workers"
        factors += f" x accumulate {recipe.accumulate}" if recipe.accumulate > 1 else ""
        why.append(f"batch: {clock.span.batch} ({factors})")
    return {
        "event": "start",
        "step": clock.step,
        "images": clock.images,
        "recipe": loaded.name,
        "model": recipe.model.name,
        "parameters": parameters,
        "num_ranks": workers,
        "batch": clock.span.batch,
        "shards": recipe.shards_for(workers),
        "steps_per_epoch": clock.span.steps_per_epoch,
        "steps": clock.steps,
        "images_per_epoch": clock.span.images_per_epoch,
        "epochs": clock.total_images / clock.span.images_per_epoch,
        "strategy": recipe.strategy.name,
        "why": why,
        **({"teacher": setup.teacher.told()} if setup.teacher else {}),
        "resumed_from": clock.step if resumed else None,
        "time": time.time(),
    }


def main(begin: Callable[[], int]) -> int:
    """Runs `begin` as a worker process: tells the agent what went wrong, returns the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell hands SIGINT down as ignored
    try:
        return begin()
    except KeyboardInterrupt:
        return INTERRUPTED
    except ShoalError as error:
        report_error(
            str(error), collateral=isinstance(error, NonFiniteError) and error.elsewhere, exit_code=error.exit_code
        )
        print(f"ERROR: {error}", file=sys.stderr)
        return error.exit_code
    except Exception as error:
        told = traceback.format_exc()
        line = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        report_error(line, traceback=told, collateral=_peer_vanished(error), exit_code=FAILED)
        print(told, file=sys.stderr)
        return FAILED


def leave(code: int) -> NoReturn:
    """Ends this process without tearing the interpreter down: threads of torch's process groups may still hold Python
    objects, and abort now and then when it goes away under them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _peer_vanished(error: Exception) -> bool:
    """Whether a collective failed because its other end went away: a consequence, not a cause."""
    words = (
        "Connection closed by peer",
        "Connection reset",
        "Broken pipe",
        "recvValue failed",
        "remote process exited",
    )
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)
