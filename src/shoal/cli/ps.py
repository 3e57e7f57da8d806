"""`shoal ps`: the processes of Shoal's jobs, on this host and on others, by their tag."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.base.errors import DONE, FAILED
from shoal.cli.hosts_option import chosen_hosts, host_options, reach_of

if TYPE_CHECKING:
    from shoal.launch.tagged import Tagged


@click.command("ps", short_help="List the processes of jobs, here and on other hosts.")
@click.argument("run", required=False)
@host_options
@click.option("--json", "as_json", is_flag=True, help="A JSON line for each process.")
def command(
    run: str | None,
    hosts: str | None,
    hostfile: str | None,
    ips: str | None,
    python: str | None,
    ssh_config: str | None,
    ssh_option: tuple[str, ...],
    as_json: bool,
) -> int:
    """List your processes that belong to a job of Shoal, whether its launcher is alive or not.

    RUN, a run folder: of that run alone, and how its job is in the engine's queue, where it was handed to one.
    Exit 1 when a host could not be asked.
    """
    in_queue = run is not None and _tell_queue(run, as_json)
    from shoal.launch.reach import ask
    from shoal.launch.tagged import tagged

    asked = chosen_hosts(hosts, hostfile, ips)
    found: list[tuple[str, Tagged]] = []
    failed = False
    if any(not host.is_here for host in asked):
        reach = reach_of(python, ssh_config, ssh_option)
        for answer in ask(asked, ["ps", "--json"], reach):
            if answer.ok:
                found += [(answer.host.text, _read(said)) for said in answer.messages()]
            else:
                failed = True
                print(f"shoal: {reach.reason(answer.host, answer.code, answer.stderr)}", file=sys.stderr)
    else:
        found = [("localhost", process) for process in tagged()]
    if run is not None:
        from shoal.launch.stopping import is_of

        found = [(host, process) for host, process in found if is_of(process, run)]
    if as_json:
        for host, process in found:
            click.echo(json.dumps({"host": host, **asdict(process)}))
    elif found or not in_queue:
        click.echo(_table(found) if found else "no process of any job")
    return FAILED if failed else DONE


def _tell_queue(run: str, as_json: bool) -> bool:
    """Says how the run's job is in an engine's queue; whether there is one."""
    from shoal.base.errors import UsageError, shown_path
    from shoal.base.run import Run
    from shoal.launch.queue import submitted

    if not Path(run).is_dir():
        raise UsageError(f"no run folder {shown_path(run)}")
    handed = submitted(Run(Path(run)))
    if handed is None:
        return False
    queue, number = handed
    state = queue.look(number)
    if as_json:
        click.echo(json.dumps({"engine": queue.name, "number": number, **asdict(state)}))
    else:
        click.echo(f"{queue.CALLED} job {number}: {state.text}")
    return True


def _read(said: dict[str, Any]) -> Tagged:
    from shoal.launch.tagged import Tagged

    return Tagged(**{key: value for key, value in said.items() if key != "host"})


def _table(found: list[tuple[str, Tagged]]) -> str:
    """Job after job; within a job in the order of hosts."""
    rows = [("JOB", "HOST", "WHO", "PID", "STATE", "AGE", "RUN")]
    for host, process in sorted(found, key=lambda pair: pair[1].job):
        who = process.name or ("agent" if process.command.endswith("-m shoal agent") else _short(process.command))
        rows.append((process.job, host, who, str(process.pid), process.state, age(process.started_s), process.run))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def _short(command: str) -> str:
    line = " ".join(command.split())
    return line if len(line) <= 40 else line[:39] + "…"


def age(seconds: float) -> str:
    """12s, 5m10s, 2h05m, 3d04h."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
