"""`shoal train`: load, plan, start; or be a worker of a world that someone else made."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from shoal.base.errors import DONE, INTERRUPTED, REQUEUE, UsageError, did_you_mean, first_line
from shoal.cli.hosts_option import (
    by_hand,
    check_detach,
    come,
    detach_option,
    hand_options,
    host_options,
    launcher_for,
    launcher_option,
    reach_of,
)
from shoal.cli.seconds import Seconds

if TYPE_CHECKING:
    from shoal.base.run import Run
    from shoal.launch.hosts import Host
    from shoal.launch.job import Role
    from shoal.recipe.load import Loaded


class Workers(click.ParamType):
    """`4`, or `2:8` for at least 2 and at most 8."""

    name = "N|A:B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        least, colon, most = str(value).partition(":")
        if not (least.isascii() and least.isdigit() and (not colon or (most.isascii() and most.isdigit()))):
            self.fail(f"{value!r} is no number of workers; expected N, or A:B as in 2:8", param, ctx)
        found = (int(least), int(most or least))
        if not 1 <= found[0] <= found[1]:
            self.fail(f"{value}: expected A:B with 1 <= A <= B" if colon else f"{value} workers cannot be", param, ctx)
        return found


@click.command("train", short_help="Train a recipe on this machine or on many.")
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "-n",
    "--workers",
    type=Workers(),
    metavar="N|A:B",
    help="Workers in all; A:B: when hosts are lost, go on with fewer, at least A. [default: one per host, or per GPU "
    "here as its shards allow]",
)
@click.option("-s", "--servers", type=click.IntRange(min=0), metavar="S",
              help="Parameter servers, for a strategy that has them. [default: 1 for strategy=ps]")  # fmt: skip
@host_options
@click.option("--nproc-per-node", type=click.IntRange(min=1), metavar="K", help="Workers that a host takes.")
@click.option("--run", "folder", type=click.Path(path_type=Path), help="Run folder. [default: runs/RECIPE-TIME]")
@click.option("--resume", default="auto", show_default=True, metavar="auto|never|PATH",
              help="Go on from the run's newest sound checkpoint, from none, or from the one at PATH.")  # fmt: skip
@click.option("--allow", multiple=True, metavar="KEY", help="A recipe key that may differ from the resumed run's.")
@click.option("--seed", type=click.IntRange(min=0), help="The same as seed=N.")
@click.option("--kv-store", metavar="TYPE", help="MXNet's name for a strategy: local, device, dist_sync, dist_async …")
@click.option("--opt-level", type=click.Choice(["O0", "O1", "O2", "O3"]), help="Apex's word: precision=O0 … O3.")
@launcher_option
@click.option("--env", multiple=True, metavar="KEY[=VALUE]", help="A variable for all; without =VALUE: as it is here.")
@click.option("--sync-dst-dir", type=click.Path(path_type=Path), metavar="DIR",
              help="Copy the working directory there on the other hosts first, and start in it.")  # fmt: skip
@click.option("--max-restarts", type=click.IntRange(min=0), metavar="M",
              help="Go on from the newest checkpoint so often after failures. [default: 0; with A:B 3]")  # fmt: skip
@click.option("--silence", type=Seconds(3), default="30s", show_default=True, metavar="TIME",
              help="A host, or this command, that says nothing for so long is lost.")  # fmt: skip
@click.option("--hang", type=Seconds(1, may_be_off=True), default="60s", show_default=True, metavar="TIME|off",
              help="Without progress for so long, the worker that holds up the others has failed.")  # fmt: skip
@click.option("--grace", type=Seconds(0), default="60s", show_default=True, metavar="TIME",
              help="Told to stop, workers have so long to save before they are killed.")  # fmt: skip
@hand_options
@click.option("--devices", metavar="0,1", help="CUDA devices to use here.")
@click.option("--ports", metavar="A-B", help="Ports that Shoal may listen on. [default: any free one]")
@detach_option
@click.option("--dry-run", is_flag=True, help="Print what would be started, and start nothing.")
def command(
    recipe: str,
    overrides: tuple[str, ...],
    workers: tuple[int, int] | None,
    servers: int | None,
    hosts: str | None,
    hostfile: str | None,
    ips: str | None,
    python: str | None,
    ssh_config: str | None,
    ssh_option: tuple[str, ...],
    nproc_per_node: int | None,
    folder: Path | None,
    resume: str,
    allow: tuple[str, ...],
    seed: int | None,
    kv_store: str | None,
    opt_level: str | None,
    launcher: str | None,
    launcher_arg: tuple[str, ...],
    env: tuple[str, ...],
    sync_dst_dir: Path | None,
    max_restarts: int | None,
    silence: float,
    hang: float | None,
    grace: float,
    node_rank: int | None,
    num_nodes: int | None,
    rendezvous: str | None,
    secret_file: str | None,
    devices: str | None,
    ports: str | None,
    detach: bool,
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
    words = [Path(recipe).name, *overrides]
    hands = by_hand(node_rank, num_nodes, rendezvous, secret_file, words, (hosts, hostfile, ips, launcher))
    if hands and node_rank and not dry_run:
        return come(hands, node_rank)
    from shoal.recipe.load import load

    if seed is not None:
        overrides = (*overrides, f"seed={seed}")
    if kv_store is not None:
        overrides = (f"strategy={_strategy_called(kv_store)}", *overrides)
    if opt_level is not None:
        overrides = (f"precision={opt_level}", *overrides)
    loaded = load(recipe, overrides)
    from shoal.base.run import Run
    from shoal.base.world import World

    if devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    world = World.from_env(os.environ)
    if world is not None and any(given is not None for given in (workers, launcher, hosts, hostfile, ips)):
        raise UsageError(
            f"this is already a worker of {world.launcher} ({world.num_ranks} in all); leave out -n, -H and --launcher"
        )
    chosen, source = ((), None) if world or hands else _hosts(hosts, hostfile, ips)
    starter = None
    if world is None:
        starter = launcher_for(launcher, chosen, reach_of(python, ssh_config, ssh_option), hands, launcher_arg, dry_run)
        check_detach(detach, starter)
        chosen = chosen or starter.hosts()
    if world:
        least = count = world.num_ranks
    else:
        least, count = workers or (_workers(loaded, chosen, nproc_per_node, num_nodes),) * 2
    strategy: Any = loaded.recipe.strategy
    roles: tuple[Role, ...] = strategy.roles(count, servers)
    held = sum(role.count for role in roles if role.name == "server")
    _check(loaded, count, held or servers or 0)
    if hands and held:
        raise UsageError(
            "--node-rank starts no parameter servers: what makes them trust their workers would travel unencrypted "
            "between nodes that were started by hand; use -H HOSTS, or start `shoal server` yourself and the workers "
            "with torchrun, mpirun or srun (docs/kvstore.md)"
        )
    if held and starter and not starter.SERVES and not hands:
        raise UsageError(
            f"--launcher {starter.name} starts no parameter servers: what makes them trust their workers would travel "
            "unencrypted between its hosts"
        )
    if least < count:
        _check_elastic(loaded, least, count, held)
    if world is None or world.rank == 0:
        for note in loaded.notes:
            print(f"note: {note}", file=sys.stderr)
    if world is not None or starter is None:
        _join(loaded, Run(folder) if folder else Run.named_after(loaded.name), world, resume, allow)
    from shoal.cli.again import again
    from shoal.cli.launch import variables
    from shoal.launch.job import REPORT_S, SERVED_REPORT_S, Job

    restarts = max_restarts if max_restarts is not None else 3 if least < count else 0
    plain = not hands and starter.IS_HERE and all(host.is_here for host in chosen)
    while True:
        run = Run(folder) if folder else Run.named_after(loaded.name)
        words, named = again(sys.argv[1:], run.folder, os.environ)
        job = Job(
            _with_commands(roles, loaded, run, resume, plain, python or sys.executable),
            run.folder,
            _ports(ports),
            chosen,
            source,
            nproc_per_node,
            id=secrets.token_hex(8),
            env=variables(env),
            sync_dst_dir=sync_dst_dir,
            data=getattr(loaded.recipe.data, "path", None),
            silence_s=silence,
            hang_s=hang,
            report_s=SERVED_REPORT_S if held else REPORT_S,
            grace_s=grace,
            max_restarts=restarts,
            min_workers=least if least < count else None,
            words=words,
            given=named,
            detach=detach,
        )
        plan = starter.plan(job)
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
        if count == 1 and launcher is None and plain and not restarts and not held:
            code = _alone(loaded, run, resume)
        else:
            if starter.submits:
                lock.close()  # it is the job's that is submitted
            outcome = starter.start(plan).wait()
            code = outcome.exit_code
            for line in outcome.lines:
                print(line, file=sys.stderr)
        if starter.submits:
            return code  # the job itself has said what it came to
        more = _again(workers, hosts, hostfile, ips) if workers or chosen else []
        more += ["-s", str(servers)] if servers else []
        more += ["--launcher", launcher] if launcher else []
        return _finish(run, code, [recipe, *overrides, *more])
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


def _hosts(hosts: str | None, hostfile: str | None, ips: str | None) -> tuple[tuple[Host, ...], Path | None]:
    """The hosts, and the file that they are read from."""
    from shoal.launch.hosts import choose_hosts, hostfile_among

    return choose_hosts(hosts, hostfile, ips, os.environ), hostfile_among(hosts, hostfile)


def _workers(loaded: Loaded, hosts: tuple[Host, ...], nproc_per_node: int | None, num_nodes: int | None = None) -> int:
    """As many as the hosts take; where nobody says how many that is, one per host."""
    from shoal.launch.place import room

    if num_nodes is not None:
        return num_nodes * (nproc_per_node or 1)
    if not hosts and nproc_per_node is None:
        return _workers_here(loaded)
    return room(hosts, nproc_per_node) or len(hosts)


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


def _check_elastic(loaded: Loaded, least: int, most: int, servers: int) -> None:
    """Fewer workers must train the same model."""
    recipe = loaded.recipe
    if recipe.shards == "auto" or recipe.batch is None:
        batch = "" if recipe.batch else f" and batch={recipe.batch_for(most)} in the place of batch_per_worker"
        raise UsageError(
            f"-n {least}:{most}: with this recipe another number of workers would train another model; "
            f"set shards={recipe.shards_for(most)}{batch}"
        )
    _check(loaded, least, servers)


def _again(workers: tuple[int, int] | None, *named: str | None) -> list[str]:
    """The words that say where and how often, for the command that goes on."""
    words = []
    if workers:
        words += ["-n", f"{workers[0]}" if workers[0] == workers[1] else f"{workers[0]}:{workers[1]}"]
    for flag, value in zip(("-H", "--hostfile", "--ips"), named, strict=True):
        words += [flag, value] if value is not None else []
    return words


def _with_commands(
    roles: tuple[Role, ...], loaded: Loaded, run: Run, resume: str, plain: bool, python: str
) -> tuple[Role, ...]:
    """What every worker and every server does. `plain`: on this host only."""
    from shoal.cli import BEGAN

    folder = run.folder if plain else run.folder.absolute()  # elsewhere the working directory may be another
    argv = {role.name: [python, "-m", "shoal", role.name, "--run", str(folder)] for role in roles}
    argv["worker"] += ["--name", loaded.name, *(["--resume", resume] if resume != "auto" else [])]
    began = {"SHOAL_BEGAN": f"{BEGAN:.3f}"}
    return tuple(replace(role, argv=tuple(argv[role.name]), env={**role.env, **began}) for role in roles)


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

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch's profiler tells the console when it begins and ends
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
    if code in (REQUEUE, INTERRUPTED) and run.steps_saved():
        command = shlex.join(["shoal", "train", *again, "--run", str(run.folder)])
        click.echo(f"Stopped; the state after step {run.steps_saved()[-1]} is saved. Go on with: {command}", err=True)
    if code == DONE:
        from shoal.report.plots import curves
        from shoal.report.tables import summary

        _try("curves", lambda: curves(run))
        _try("report", lambda: _report(run))
        click.echo(summary(run))
    elif run.metrics_file.exists():
        _try("report", lambda: _report(run))
    return code


def _report(run: Run) -> None:
    from shoal.report.page import write

    write([run])


def _try(what: str, make: Callable[[], object]) -> None:
    """That a picture or a page cannot be made is no reason to call the training failed."""
    try:
        make()
    except Exception as error:
        print(f"WARNING: no {what}: {first_line(error)}", file=sys.stderr)
