"""`shoal launch`: any command, as many processes on as many hosts, in the worlds of torchrun, MXNet and Paddle."""

from __future__ import annotations

import os
import re
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.base.errors import DONE, UsageError
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
    from shoal.base.run import Run, RunLock

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@click.command("launch", short_help="Start any command on this machine or on many.",
               context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})  # fmt: skip
@click.argument("argv", nargs=-1, required=True, metavar="-- COMMAND...")
@click.option("-n", "--workers", type=click.IntRange(min=1),
              help="Workers in all. [default: what the hosts take, else one a host]")  # fmt: skip
@click.option("-s", "--servers", type=click.IntRange(min=0), default=0,
              help="Parameter servers of MXNet or Paddle (and MXNet's scheduler): the same command.")  # fmt: skip
@host_options
@click.option("--nproc-per-node", type=click.IntRange(min=1), metavar="K", help="Workers that a host takes.")
@launcher_option
@click.option("--env", multiple=True, metavar="KEY[=VALUE]", help="A variable for all; without =VALUE: as it is here.")
@click.option(
    "--log-dir", type=click.Path(path_type=Path), help="Where logs/ROLE-RANK.log go. [default: runs/COMMAND-TIME]"
)
@click.option("--sync-dst-dir", type=click.Path(path_type=Path), metavar="DIR",
              help="Copy the working directory there on the other hosts first, and start in it.")  # fmt: skip
@click.option("--workdir", type=click.Path(path_type=Path), metavar="DIR",
              help="Start there, on every host. [default: this directory]")  # fmt: skip
@click.option("--ports", metavar="A-B", help="Ports to choose from. [default: any free one]")
@click.option("--max-restarts", type=click.IntRange(min=0), default=0, help="Start anew so often after a failure.")
@click.option("--silence", type=Seconds(3), default="30s", show_default=True, metavar="TIME",
              help="A host that says nothing for so long is lost.")  # fmt: skip
@click.option("--grace", type=Seconds(0), default="60s", show_default=True, metavar="TIME",
              help="Told to stop, processes have so long before they are killed.")  # fmt: skip
@hand_options
@detach_option
@click.option("--dry-run", is_flag=True, help="Print what would be started, and start nothing.")
def command(
    argv: tuple[str, ...],
    workers: int | None,
    servers: int,
    hosts: str | None,
    hostfile: str | None,
    ips: str | None,
    python: str | None,
    ssh_config: str | None,
    ssh_option: tuple[str, ...],
    nproc_per_node: int | None,
    launcher: str | None,
    launcher_arg: tuple[str, ...],
    env: tuple[str, ...],
    log_dir: Path | None,
    sync_dst_dir: Path | None,
    workdir: Path | None,
    ports: str | None,
    max_restarts: int,
    silence: float,
    grace: float,
    node_rank: int | None,
    num_nodes: int | None,
    rendezvous: str | None,
    secret_file: str | None,
    detach: bool,
    dry_run: bool,
) -> int:
    """Start COMMAND once per worker, each with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR … of torchrun and PADDLE_…;
    with servers also DMLC_… of MXNet, for each role. When it ends, for whatever reason, nothing of it is left anywhere.

    \b
    shoal launch -n 4 -- python train.py
    shoal launch -n 4 -s 2 -H node1,node2 -- python train_cifar10.py --kv-store dist_sync
    """
    from shoal.base.run import Run
    from shoal.cli.again import again
    from shoal.cli.train import _ports
    from shoal.launch.hosts import choose_hosts, hostfile_among
    from shoal.launch.job import Job, Role
    from shoal.launch.place import room

    hands = by_hand(node_rank, num_nodes, rendezvous, secret_file, argv, (hosts, hostfile, ips, launcher))
    if hands and node_rank and not dry_run:
        return come(hands, node_rank)
    chosen = () if hands else choose_hosts(hosts, hostfile, ips, os.environ)
    starter = launcher_for(launcher, chosen, reach_of(python, ssh_config, ssh_option), hands, launcher_arg, dry_run)
    chosen = chosen or starter.hosts()
    count = workers or (hands["num_nodes"] * (nproc_per_node or 1) if hands else None)
    count = count or room(chosen, nproc_per_node) or max(1, len(chosen))
    roles = [Role("worker", count, argv)]
    if servers:
        roles += [Role("server", servers, argv), Role("scheduler", 1, argv)]
    given = variables(env)

    def job(run: Run) -> Job:
        words, named = again(sys.argv[1:], run.folder, os.environ, argv)
        return Job(
            tuple(roles),
            run.folder,
            ports=_ports(ports),
            hosts=chosen,
            hostfile=hostfile_among(hosts, hostfile),
            nproc_per_node=nproc_per_node,
            id=secrets.token_hex(8),
            env=given,
            workdir=workdir,
            sync_dst_dir=sync_dst_dir,
            silence_s=silence,
            grace_s=grace,
            hang_s=None,  # a program that is not ours tells no progress
            max_restarts=max_restarts,
            words=words,
            given=named,
            detach=detach,
            worlds="all",
        )

    check_detach(detach, starter)
    plan = starter.plan(job(Run(log_dir) if log_dir else Run.named_after(_called(argv))))
    if dry_run:
        click.echo(plan.text(), nl=False)
        return DONE
    run, lock = _claimed(argv, log_dir)
    try:
        plan = starter.plan(job(run))
        run.plan.write_text(plan.text())
        if starter.submits:
            lock.close()  # it is the job's that is submitted
        outcome = starter.start(plan).wait()
        for line in outcome.lines:
            print(line, file=sys.stderr)
        return outcome.exit_code
    finally:
        lock.close()


def variables(words: tuple[str, ...]) -> dict[str, str | None]:
    """KEY=VALUE, or a name whose value here travels. Values are never shown."""
    found: dict[str, str | None] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not _NAME.fullmatch(key):
            raise UsageError(f"--env {key!r}: no name of a variable; expected --env KEY=VALUE or --env KEY")
        if not equals and key not in os.environ:
            raise UsageError(f"--env {key}: not set here; give it a value: --env {key}=VALUE")
        found[key] = value if equals else None
    return found


def _called(argv: tuple[str, ...]) -> str:
    """What the command is called by people: its script, else its program."""
    script = next((word for word in argv if word.endswith(".py")), argv[0])
    return Path(script).stem or "launch"


def _claimed(argv: tuple[str, ...], log_dir: Path | None) -> tuple[Run, RunLock]:
    """The folder of the logs, taken for this job."""
    from shoal.base.run import Run

    while True:
        run = Run(log_dir) if log_dir else Run.named_after(_called(argv))
        try:
            return run, run.claim(fresh=log_dir is None)
        except FileExistsError:
            continue  # another launch took the name in this very second
        except UsageError as error:
            raise UsageError(str(error).replace("--run", "--log-dir").replace("another run", "another job")) from None
        except OSError as error:
            raise UsageError(f"--log-dir {run.folder}: cannot be made ({error.strerror})") from None
