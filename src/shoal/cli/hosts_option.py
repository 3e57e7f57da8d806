"""The options of every verb that looks at other hosts: which, and how ssh gets there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from shoal.launch.hosts import Host
    from shoal.launch.launcher import Launcher
    from shoal.launch.reach import Reach


def host_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """-H, --hostfile, --ips, --python, --ssh-config, --ssh-option."""
    for option in reversed(
        [
            click.option("-H", "--hosts", metavar="a,b|FILE", help="Hosts, or a file with a host a line."),
            click.option("--hostfile", metavar="FILE", help="A host a line, as in: user@node1:22 slots=4"),
            click.option("--ips", metavar="a,b", help="Hosts by their addresses."),
            click.option("--python", metavar="PATH", help="The interpreter there. [default: this one's path]"),
            click.option("--ssh-config", metavar="FILE", help="In the place of ~/.ssh/config."),
            click.option("--ssh-option", multiple=True, metavar="KEY=VALUE", help="As behind ssh's -o."),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


def hand_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--node-rank, --num-nodes, --rendezvous, --secret-file: every node is started by hand."""
    for option in reversed(
        [
            click.option("--node-rank", type=click.IntRange(min=0), metavar="K",
                         help="Started by hand with the same command on each node: this is node K."),
            click.option("--num-nodes", type=click.IntRange(min=2), metavar="N", help="… of N."),
            click.option("--rendezvous", metavar="HOST:PORT", help="… and node 0 waits for the others there."),
            click.option("--secret-file", metavar="FILE",
                         help="… with the same secret on all nodes. [default: SHOAL_SECRET_FILE]"),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


def chosen_hosts(hosts: str | None, hostfile: str | None, ips: str | None) -> tuple[Host, ...]:
    """The hosts that the options or the environment name; this host alone where nobody names any."""
    from shoal.launch.hosts import Host, choose_hosts

    return choose_hosts(hosts, hostfile, ips, os.environ) or (Host("localhost"),)


def reach_of(python: str | None, ssh_config: str | None, ssh_option: tuple[str, ...]) -> Reach:
    from shoal.launch.reach import Reach

    return Reach(ssh_config, ssh_option, python=python or sys.executable)


def launcher_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--launcher, --launcher-arg."""
    for option in reversed(
        [
            click.option("--launcher", metavar="NAME[:KEY=VALUE,…]",
                         help="Where it runs (`shoal list launchers`). [default: local for this host, else ssh]"),
            click.option("--launcher-arg", multiple=True, metavar="WORD",
                         help="A further word for mpirun, sbatch, qsub …; --launcher-arg=--WORD where it has dashes."),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


def detach_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--detach, --wait."""
    told = "Handed to an engine's queue: leave the job alone, or follow it (Ctrl-C cancels it). [default: --wait]"
    return click.option("--detach/--wait", default=False, help=told)(command)


def check_detach(detach: bool, starter: Launcher) -> None:
    from shoal.base.errors import UsageError

    if detach and not starter.submits:
        raise UsageError(f"--detach: launcher {starter.name} has no queue here that would keep the job; leave it out")


def launcher_for(
    name: str | None,
    hosts: tuple[Host, ...],
    reach: Reach,
    hands: dict[str, Any] | None = None,
    args: tuple[str, ...] = (),
    dry_run: bool = False,
) -> Launcher:
    """The launcher asked for, else the one that reaches these hosts; UsageError where it cannot be used here.

    `dry_run`: it is only to plan, which needs no engine.
    """
    from shoal.base.errors import UsageError
    from shoal.recipe.check import Fault, fields, part
    from shoal.recipe.part import kind

    away = any(not host.is_here for host in hosts)
    called, options = name or ("ssh" if away else "local"), {}
    if ":" in called:
        from shoal.recipe.load import short_form

        called, options = short_form(called)
    wanted: dict[str, Any] = hands or {"name": called, **options}
    python = None if reach.python == sys.executable else reach.python
    given = {"config": reach.config, "options": reach.options or None, "python": python}
    if args:
        wanted["args"] = list(args)
    known = fields(chosen) if (chosen := kind("launchers", wanted["name"])) else {}
    wanted = {key: value for key, value in given.items() if key in known and value is not None} | wanted
    faults: list[Fault] = []
    starter: Any = part("launchers", wanted, ("--launcher",), faults)
    if faults:
        raise UsageError("\n".join(f"{'.'.join(fault.at)}: {fault.text}" for fault in faults))
    unfit = None if dry_run else starter.fits()
    if unfit:
        raise UsageError(f"--launcher {starter.name}: {unfit}")
    return starter


def by_hand(
    node_rank: int | None,
    num_nodes: int | None,
    rendezvous: str | None,
    secret_file: str | None,
    argv: Sequence[str],
    others: Sequence[str | None],
) -> dict[str, Any] | None:
    """The launcher of nodes that are started by hand, where the options ask for it. `argv`: what all must agree on;
    `others`: the options that say where else, -H and the like."""
    from shoal.base.errors import UsageError

    given = {"--node-rank": node_rank, "--num-nodes": num_nodes, "--rendezvous": rendezvous}
    missing = [flag for flag, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if missing or node_rank is None or num_nodes is None or rendezvous is None:
        raise UsageError(f"{', '.join(missing)}: missing; by hand, every node needs {', '.join(given)}")
    if any(others):
        raise UsageError("--node-rank means that every node is started by hand; leave out -H and --launcher")
    if node_rank >= num_nodes:
        raise UsageError(f"--node-rank {node_rank}: expected 0 to {num_nodes - 1}, for --num-nodes is {num_nodes}")
    from shoal.launch.hands import digest, parse_rendezvous
    from shoal.launch.handshake import read_secret

    parse_rendezvous(rendezvous)
    read_secret(secret_file)  # its faults are told before anything is begun
    return {
        "name": "hands",
        "rendezvous": rendezvous,
        "num_nodes": num_nodes,
        "secret_file": secret_file,
        "command": digest(argv),
    }


def come(hands: dict[str, Any], node_rank: int) -> int:
    """Be node K of a job that node 0 leads; its exit code is the job's."""
    from shoal.launch.hands import join, parse_rendezvous
    from shoal.launch.handshake import read_secret
    from shoal.launch.seats import Seat

    seat = Seat(node_rank, hands["num_nodes"], hands["command"])
    secret = read_secret(hands["secret_file"])
    show = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    return join(parse_rendezvous(hands["rendezvous"]), seat, secret, show)
