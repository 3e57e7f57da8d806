"""`shoal stop`: ends a job on all hosts, whether its launcher is alive or not."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.base.errors import DONE, FAILED, UsageError
from shoal.cli.hosts_option import chosen_hosts, host_options, reach_of
from shoal.cli.seconds import Seconds

if TYPE_CHECKING:
    from shoal.launch.hosts import Host
    from shoal.launch.stopping import Stopped

_JOB = re.compile(r"[0-9a-f]{16}")


@click.command("stop", short_help="Stop a job here and on other hosts.")
@click.argument("run", required=False)
@click.option("--all-mine", is_flag=True, help="Every job of this user.")
@host_options
@click.option("--grace", type=Seconds(0), default="10s", show_default=True, metavar="TIME",
              help="The time to save and to leave, before what is left is killed.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="A JSON line for each job.")
def command(
    run: str | None,
    all_mine: bool,
    hosts: str | None,
    hostfile: str | None,
    ips: str | None,
    python: str | None,
    ssh_config: str | None,
    ssh_option: tuple[str, ...],
    grace: float,
    as_json: bool,
) -> int:
    """Stop the job of RUN, a run folder or a job's id as `shoal ps` shows it.

    A job in an engine's queue is cancelled there. Any other one's launcher is asked to stop it, or, where that is gone,
    its workers; they save their state. What is left after the grace is killed. Exit 1 when a host could not be asked or
    a process hangs in the kernel.
    """
    if (run is None) != all_mine:
        raise UsageError("say what to stop: either RUN (a run folder, or a job's id from `shoal ps`) or --all-mine")
    if run is not None and not _JOB.fullmatch(run):
        run = str(Path(run).absolute())
        if cancelled := _cancel(Path(run), grace):
            click.echo(cancelled)
            return DONE
    asked = chosen_hosts(hosts, hostfile, ips)
    found, failures = _stop(asked, run, grace, reach_of(python, ssh_config, ssh_option))
    if not found and not failures and run is not None and not _JOB.fullmatch(run) and not Path(run).is_dir():
        raise UsageError(f"no run folder {run}, and no process of it is alive; `shoal ps` lists what is")
    for host, stopped in found:
        click.echo(json.dumps({"host": host, **asdict(stopped)}) if as_json else stopped.text(host))
    if not found and not as_json:
        click.echo(f"nothing of {run or 'yours'} is alive on {', '.join(host.text for host in asked)}")
    for failure in failures:
        print(f"shoal: {failure}", file=sys.stderr)
    return FAILED if failures or any(stopped.survivors for _, stopped in found) else DONE


def _cancel(folder: Path, grace: float) -> str:
    """What became of the run's job in an engine's queue; empty where there is none, or it has ended."""
    from shoal.base.run import Run
    from shoal.launch.queue import submitted

    handed = submitted(Run(folder))
    if handed is None or handed[0].look(handed[1]).code is not None:
        return ""
    queue, number = handed
    queue.cancel(number)
    limit = time.monotonic() + max(1.0, grace)
    while (state := queue.look(number)).code is None and time.monotonic() < limit:
        time.sleep(0.5)
    ended = (
        "has ended" if state.code is not None else f"is told to, and has time until the engine ends it ({state.text})"
    )
    return f"{queue.CALLED} job {number}: cancelled; it {ended}"


def _stop(asked: tuple[Host, ...], run: str | None, grace: float, reach) -> tuple[list[tuple[str, Stopped]], list[str]]:
    """What was stopped on which host, and why some could not be asked. This host comes first: a launcher that is told
    to stop ends its job on all hosts in good order."""
    from shoal.launch.stopping import Stopped, stop_here

    found: list[tuple[str, Stopped]] = []
    failures: list[str] = []
    if any(host.is_here for host in asked) or _claimed_here(run):
        found += [("localhost", stopped) for stopped in stop_here(run, grace)]
    others = [host for host in asked if not host.is_here]
    if others:
        from shoal.launch.reach import ask

        words = ["stop", *([run] if run else ["--all-mine"]), "--json", "--grace", f"{grace:g}"]
        for answer in ask(others, words, reach, limit_s=grace + 30):
            messages = answer.messages()
            if answer.code == DONE or (answer.code == FAILED and messages):
                for said in messages:
                    said.pop("host")
                    found.append((answer.host.text, Stopped(**{**said, "survivors": tuple(said["survivors"])})))
            elif not (answer.code == 2 and "no run folder" in answer.stderr):  # without a shared file system
                failures.append(reach.reason(answer.host, answer.code, answer.stderr))
    return found, failures


def _claimed_here(run: str | None) -> bool:
    """Whether a launcher on this host holds the run folder: then the job is stopped best from here."""
    import socket

    from shoal.base.run import Run

    owner = Run(Path(run)).claimed_by() if run and os.path.isdir(run) else None
    return owner is not None and owner[1] == socket.gethostname()
