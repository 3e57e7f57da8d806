"""`shoal doctor`: looks at hosts before a job does, and says what mends what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.base.errors import DONE, FAILED
from shoal.cli.hosts_option import chosen_hosts, host_options, reach_of

if TYPE_CHECKING:
    from shoal.launch.doctor import Check
    from shoal.launch.hosts import Host
    from shoal.launch.reach import Reach


@click.command("doctor", short_help="Look whether hosts can run a job, and say what mends them.")
@host_options
@click.option("--data", type=click.Path(path_type=Path), help="A file or folder that must be the same on all hosts.")
@click.option("--run", "folder", type=click.Path(path_type=Path), help="Where a run is to be written.")
@click.option("--ports", metavar="A-B", help="Ports that Shoal may listen on.")
@click.option("--json", "as_json", is_flag=True, help="A JSON line for each check.")
@click.option("--probe", "as_probe", is_flag=True, hidden=True)
def command(
    hosts: str | None,
    hostfile: str | None,
    ips: str | None,
    python: str | None,
    ssh_config: str | None,
    ssh_option: tuple[str, ...],
    data: Path | None,
    folder: Path | None,
    ports: str | None,
    as_json: bool,
    as_probe: bool,
) -> int:
    """Look at each host: whether it is reached, its interpreter, packages, code and data against this host's, its
    clock, interface, connections to the others, free ports, /dev/shm, GPUs and limits.

    Exit 1 when there is a fault.
    """
    if as_probe:
        from shoal.launch.probe import answer

        answer(sys.stdin, sys.stdout)
        return DONE
    from shoal.cli.train import _ports

    wants = {
        "data": str(data.absolute()) if data else None,
        "folder": str(folder.absolute()) if folder else None,
        "ports": [span.start, span.stop] if (span := _ports(ports)) else None,
    }
    found = _examine(chosen_hosts(hosts, hostfile, ips), wants, reach_of(python, ssh_config, ssh_option))
    for check in found:
        if as_json:
            from dataclasses import asdict

            click.echo(json.dumps(asdict(check)))
        elif check.verdict == "ok":
            click.echo(f"  ok   {check.line()}")
        else:
            click.echo(f"{check.verdict.upper():>5}  {check.line()}")
    faults = sum(check.verdict == "fault" for check in found)
    if not as_json:
        notes = sum(check.verdict == "note" for check in found)
        click.echo(f"{faults} faults, {notes} notes, {len(found) - faults - notes} ok")
    return FAILED if faults else DONE


def _examine(asked: tuple[Host, ...], wants: dict, reach: Reach) -> list[Check]:
    """Host after host, all of its checks."""
    from shoal.launch.doctor import Check, checks, peer_check
    from shoal.launch.facts import facts
    from shoal.launch.probe import probe

    ports = range(*wants["ports"]) if wants["ports"] else None
    here = {**facts(data=wants["data"], ports=ports), "data_asked": wants["data"]}
    alone = len(asked) == 1
    found: list[Check] = []
    for probed in probe(asked, wants, reach):
        name = probed.host.text
        if probed.facts is None:
            text, _, mend = probed.reason.removeprefix(f"{name}: ").partition("; ")
            found.append(Check(name, "reached", "fault", text, mend))
            continue
        there = {**probed.facts, "alone": alone}
        waited = probed.answered_at - probed.asked_at
        found.append(Check(name, "reached", "ok", f"in {waited:.1f} s, it calls itself {there['host']}"))
        workers = probed.host.slots or max(1, there["gpus"]["devices"])
        found += checks(probed.host, here, there, probed.asked_at, probed.answered_at, workers=workers)
        if not alone:
            found.append(peer_check(probed.host, probed.tried))
    return found
