"""What to start (Job, Role), exactly how (Plan, Command), the running thing (Handle) and how it ended (Outcome)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

RoleName = Literal["worker", "server"]


@dataclass(frozen=True)
class Role:
    """So many processes that do the same."""

    name: RoleName
    count: int
    """Processes over all hosts."""
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those of the World; the launcher's win where both name one."""
    expendable: bool = False
    """The job goes on when one of them, but the first, is killed."""


@dataclass(frozen=True)
class Job:
    """What to start; nothing in it says where."""

    roles: tuple[Role, ...]
    run: Path
    """The run folder."""
    ports: range | None = None
    """Everything that listens takes its port from here; None: any free one."""
    hosts: tuple[str, ...] = ()
    """In the order of ranks; empty: this host."""


@dataclass(frozen=True)
class Command:
    """One process: what a launcher starts on one host. Values of `env` may hold placeholders such as `{rendezvous}`."""

    role: RoleName
    rank: int
    """Among the processes of its role."""
    host: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Only what Shoal sets; the rest is the environment it is started from."""
    log: Path
    expendable: bool = False
    """The job goes on without it, should it be killed."""

    @property
    def name(self) -> str:
        return f"{self.role} {self.rank}"

    def text(self) -> str:
        """A block for people: host, who, environment, command line, log."""
        variables = [f"    {key}={shlex.quote(value)}" for key, value in self.env.items()]
        return "\n".join(
            [f"{self.host} {self.role}-{self.rank}", *variables, f"    {shlex.join(self.argv)}", f"    log: {self.log}"]
        )


@dataclass(frozen=True)
class Plan:
    """Everything a launcher is going to do, before it does it."""

    commands: tuple[Command, ...]
    job: Job
    launcher: str

    def text(self) -> str:
        """What --dry-run prints and plan.txt holds. Placeholders stay unfilled: only a start gives them values."""
        ports = f"{self.job.ports.start}-{self.job.ports.stop - 1}" if self.job.ports else "any"
        head = f"launcher: {self.launcher}\nrun: {self.job.run}\nprocesses: {len(self.commands)}\nports: {ports}"
        return "\n\n".join([head, *(command.text() for command in self.commands)]) + "\n"


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    exit_code: int
    """0 done, 1 failed, 2 wrong usage, 75 "requeue me", 130 interrupted."""
    lines: tuple[str, ...] = ()
    """What to tell the user last; empty when all went well."""


class Handle(Protocol):
    """A job that was started."""

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Blocks until the job has ended. After `timeout_s` seconds the job is killed and counts as failed."""
        ...

    def status(self) -> dict[str, str]:
        """Each process's name -> `running`, `exit 0`, `killed by SIGKILL` …"""
        ...

    def cancel(self) -> None:
        """Kills the job; `wait` then returns an interrupted Outcome. May be called from any thread."""
        ...
