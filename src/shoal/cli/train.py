"""`shoal train`: load, plan, start; or be a worker of a world that someone else made."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from shoal.base.errors import DONE, INTERRUPTED, REQUEUE, UsageError, did_you_mean

if TYPE_CHECKING:
    from shoal.base.run import Run
    from shoal.launch.job import Plan, Role
    from shoal.launch.launcher import Launcher
    from shoal.recipe.load import Loaded


@click.command("train", short_help="Train a recipe on this machine or on many.")
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "-n",
    "--workers",
    type=click.IntRange(min=1),
    help="Workers in all. [default: the GPUs here that its shards allow, else 1]",
)
@click.option("-s", "--servers", type=click.IntRange(min=0),
              help="Parameter servers, for a strategy that has them. [default: 1 for strategy=ps]")  # fmt: skip
@click.option("--run", "folder", type=click.Path(path_type=Path), help="Run folder. [default: runs/RECIPE-TIME]")
@click.option("--resume", default="auto", show_default=True, metavar="auto|never|PATH",
              help="Go on from the run's newest sound checkpoint, from none, or from the one at PATH.")  # fmt: skip
@click.option("--allow", multiple=True, metavar="KEY", help="A recipe key that may differ from the resumed run's.")
@click.option("--seed", type=click.IntRange(min=0), help="The same as seed=N.")
@click.option("--kv-store", metavar="TYPE", help="MXNet's name for a strategy: local, device, dist_sync, dist_async …")
@click.option("--launcher", help="Where workers run. [default: local]")
@click.option("--devices", metavar="0,1", help="CUDA devices to use here.")
@click.option("--ports", metavar="A-B", help="Ports that Shoal may listen on. [default: any free one]")
@click.option("--dry-run", is_flag=True, help="Print what would be started, and start nothing.")
def command(
    recipe: str,
    overrides: tuple[str, ...],
    workers: int | None,
    servers: int | None,
    folder: Path | None,
    resume: str,
    allow: tuple[str, ...],
    seed: int | None,
    kv_store: str | None,
    launcher: str | None,
    devices: str | None,
    ports: str | None,
    dry_run: bool,
) -> int:
    """Train RECIPE: a built-in recipe's name or a path to a .yaml file, with keys changed as in optim.lr=0.1.

    Started by torchrun, mpirun, srun and the like, it is simply a worker of their job (with torchrun put -- before
    shoal, as in `torchrun --nproc-per-node 2 --no-python -- shoal train …`: it would take --run for an option of its
    own).
    To go on with a run: the same command with --run FOLDER; resuming is automatic.
    """
    from shoal.recipe.find import find

    find(recipe)  # an unknown name is told before anything heavier is imported
    from shoal.recipe.load import load

    if seed is not None:
        overrides = (*overrides, f"seed={seed}")
    if kv_store is not None:
        overrides = (f"strategy={_strategy_called(kv_store)}", *overrides)
    loaded = load(recipe, overrides)
    from shoal.base.run import Run
    from shoal.base.world import World

    if devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    world = World.from_env(os.environ)
    if world is not None and (workers is not None or launcher is not None):
        raise UsageError(
            f"this is already a worker of {world.launcher} ({world.num_ranks} in all); leave out -n and --launcher"
        )
    count = world.num_ranks if world else workers or _workers_here(loaded)
    strategy: Any = loaded.recipe.strategy
    roles = strategy.roles(count, servers)
    held = sum(role.count for role in roles if role.name == "server")
    _check(loaded, count, held or servers or 0)
    if world is None or world.rank == 0:
        for note in loaded.notes:
            print(f"note: {note}", file=sys.stderr)
    if world is not None:
        _join(loaded, Run(folder) if folder else Run.named_after(loaded.name), world, resume, allow)
    while True:
        run = Run(folder) if folder else Run.named_after(loaded.name)
        plan, starter = _plan(loaded, run, roles, resume, launcher, ports)
        if dry_run:
            click.echo(plan.text(), nl=False)
            return DONE
        try:
            lock = run.claim(fresh=folder is None)
            break
        except FileExistsError:
            continue  # another training took the name in this very second
    try:
        _prepare(loaded, run, resume, allow)
        run.plan.write_text(plan.text())
        if count == 1 and launcher is None and not held:
            code = _alone(loaded, run, resume)
        else:
            outcome = starter.start(plan).wait()
            code = outcome.exit_code
            for line in outcome.lines:
                print(line, file=sys.stderr)
        again = ["-n", str(count)] if count > 1 else []
        again += ["-s", str(held)] if held > 1 else []
        return _finish(run, code, [recipe, *overrides, *again])
    finally:
        lock.close()


KV_STORES = {
    "local": "dp:kvstore=local",
    "device": "dp:kvstore=device",
    "dist_sync": "ps:mode=sync",
    "dist_device_sync": "ps:mode=sync",
    "dist_sync_device": "ps:mode=sync",
    "dist_async": "ps:mode=async",
    "dist_device_async": "ps:mode=async",
}
"""MXNet's types of KVStore as strategies."""


def _strategy_called(kv_store: str) -> str:
    if kv_store.lower() not in KV_STORES:
        raise UsageError(f"--kv-store: no type '{kv_store}'{did_you_mean(kv_store.lower(), KV_STORES)}")
    return KV_STORES[kv_store.lower()]


def _workers_here(loaded: Loaded) -> int:
    """One worker per GPU of this host, as far as the recipe's strategy and shards go."""
    from shoal.base.host import gpus

    strategy: Any = loaded.recipe.strategy
    shards = loaded.recipe.shards
    return max(count for count in range(1, (gpus() or 1) + 1) if count == 1 or strategy.takes(count, shards))


def _check(loaded: Loaded, count: int, servers: int) -> None:
    recipe = loaded.recipe
    strategy: Any = recipe.strategy
    strategy.check(count, servers, recipe.shards_for(count))
    recipe.check_cut(count)


def _plan(
    loaded: Loaded, run: Run, roles: tuple[Role, ...], resume: str, launcher: str | None, ports: str | None
) -> tuple[Plan, Launcher]:
    """What would be started, and who starts it."""
    from shoal.cli import BEGAN
    from shoal.launch.job import Job
    from shoal.recipe.check import Fault, part

    argv = {role: [sys.executable, "-m", "shoal", role, "--run", str(run.folder)] for role in ("worker", "server")}
    argv["worker"] += ["--name", loaded.name, *(["--resume", resume] if resume != "auto" else [])]
    began = {"SHOAL_BEGAN": f"{BEGAN:.3f}"}
    roles = tuple(replace(role, argv=tuple(argv[role.name]), env={**role.env, **began}) for role in roles)
    faults: list[Fault] = []
    starter = part("launchers", launcher or "local", ("--launcher",), faults)
    if faults:
        raise UsageError(f"--launcher: {faults[0].text}")
    unfit = starter.fits()
    if unfit:
        raise UsageError(f"--launcher {starter.name}: {unfit}")
    job = Job(roles, run.folder, _ports(ports))
    return starter.plan(job), starter


def _ports(text: str | None) -> range | None:
    if text is None:
        return None
    first, _, last = text.partition("-")
    try:
        ports = range(int(first), int(last or first) + 1)
    except ValueError:
        ports = range(0)
    if not ports or ports.start < 1 or ports.stop > 65536:
        raise UsageError(f"--ports {text}: expected a range as in 5000-5100")
    return ports


def _prepare(loaded: Loaded, run: Run, resume: str, allow: tuple[str, ...]) -> None:
    """Makes the run folder ready: it resumes only what it began, unless the differences are allowed."""
    from shoal.base.files import write_whole
    from shoal.recipe.load import dump

    if resume == "never" and run.steps_saved():
        raise UsageError(
            f"--resume never: {run.folder} holds checkpoints that would be lost; choose another --run folder"
        )
    if resume not in ("auto", "never") and not Path(resume).exists():
        raise UsageError(f"--resume {resume}: no such folder")
    place = run.folder if resume in ("auto", "never") else Path(resume)
    if found := _newest_manifest(place):
        from shoal.recipe.changes import check_changes

        path, manifest = found
        check_changes(manifest["recipe"], str(path), loaded.recipe, allow)
    run.log("worker", 0).parent.mkdir(parents=True, exist_ok=True)
    head = f"# {loaded.name}, resolved: every key with its value. Train it again with: shoal train THIS_FILE"
    write_whole(run.recipe, f"{head}\n{dump(loaded.recipe)}")


def _newest_manifest(place: Path) -> tuple[Path, dict[str, Any]] | None:
    """What a checkpoint, or the newest of a run, says of itself; read without torch, and before anything is written."""
    from shoal.base.run import Run

    run = Run(place)
    for path in (place, *(run.checkpoint(step) for step in reversed(run.steps_saved()))):
        try:
            return path, json.loads((path / "manifest.json").read_text())
        except (OSError, ValueError):
            continue  # damaged; which checkpoint is sound is found out by the worker that reads it
    return None


def _alone(loaded: Loaded, run: Run, resume: str) -> int:
    """One worker and no launcher: trains in this very process."""
    from shoal.cli import BEGAN
    from shoal.train.signals import StopSignals

    with StopSignals() as signals:
        from shoal.train.worker import main, work  # imports torch, which takes seconds

        return main(lambda: work(loaded, run, None, signals, resume=resume, began=BEGAN))


def _join(loaded: Loaded, run: Run, world: Any, resume: str, allow: tuple[str, ...]) -> NoReturn:
    """A worker of someone else's world. Rank 0 owns the run folder."""
    from shoal.cli import BEGAN
    from shoal.train.signals import StopSignals

    lock = run.claim() if world.rank == 0 else None
    try:
        if lock is not None:
            _prepare(loaded, run, resume, allow)
            run.plan.write_text(f"launcher: {world.launcher} (not started by Shoal)\nprocesses: {world.num_ranks}\n")
        with StopSignals() as signals:
            from shoal.train.worker import leave, main, work  # imports torch, which takes seconds

            code = main(lambda: work(loaded, run, world, signals, resume=resume, began=BEGAN))
        leave(_finish(run, code, [str(run.recipe)]) if lock is not None else code)
    finally:
        if lock is not None:
            lock.close()


def _finish(run: Run, code: int, again: list[str]) -> int:
    """What a person sees last: the result and where it lies, or how to go on. again: what was trained, as words."""
    if code == DONE:
        from shoal.report.plots import curves
        from shoal.report.tables import summary

        try:
            curves(run)
        except Exception as error:  # a picture that cannot be drawn is no reason to call the training failed
            print(f"WARNING: no curves: {error}", file=sys.stderr)
        click.echo(summary(run))
    elif code in (REQUEUE, INTERRUPTED) and run.steps_saved():
        command = shlex.join(["shoal", "train", *again, "--run", str(run.folder)])
        click.echo(f"Stopped; the state after step {run.steps_saved()[-1]} is saved. Go on with: {command}", err=True)
    return code
