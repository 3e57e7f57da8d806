"""What to start (Job, Role), exactly how (Plan, Command), the running thing (Handle) and how it ended (Outcome)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from shoal.launch.hosts import Host

RoleName = Literal["worker", "server", "scheduler"]


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
    """The job goes on when one of them is killed or lost; but for the first, where hosts are several."""


REPORT_S, SERVED_REPORT_S = 2.0, 4.5
"""Job.report_s; the longer with servers of our own, which let a lost worker come back for 3 s before they name it."""


@dataclass(frozen=True)
class Job:
    """What to start, and on which hosts."""

    roles: tuple[Role, ...]
    run: Path
    """The run folder."""
    ports: range | None = None
    """Everything that listens takes its port from here; None: any free one."""
    hosts: tuple[Host, ...] = ()
    """In the order of ranks; empty: this host."""
    hostfile: Path | None = None
    """Where `hosts` come from; read again before a restart."""
    nproc_per_node: int | None = None
    """Workers that a host takes; None: as its slots say."""
    id: str = ""
    """16 hex digits that every process of the job carries as its tag; empty: the start makes one up."""
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Variables for every process, on every host; None: this process's value, if it has one."""
    workdir: Path | None = None
    """Where processes start; None: this process's working directory, on every host."""
    sync_dst_dir: Path | None = None
    """Where the working directory is copied to on other hosts before the start; None: it is not."""
    data: str | None = None
    """A file or folder that all hosts must hold alike, looked at before a start on others; None: nobody looks."""
    silence_s: float = 30.0
    """A host, or a launcher, that says nothing for so long is lost, and everything below it ends."""
    hang_s: float | None = 60.0
    """A worker that makes no progress for so long hangs; None: nobody looks."""
    report_s: float = REPORT_S
    """After a failure, the time the others have to report."""
    grace_s: float = 60.0
    """After processes were told to stop, or one stopped in good order, the time the rest has before it is killed."""
    max_restarts: int = 0
    min_workers: int | None = None
    """A restart may do with so few workers; None: with the same number only."""
    words: tuple[str, ...] = ()
    """Behind `shoal`, what starts this job anew: for engines that do so on a host of theirs."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Variables that `words` name without their values."""
    detach: bool = False
    """Handed to an engine, it is left alone."""
    worlds: Literal["shoal", "all"] = "shoal"
    """Whose variables processes find: Shoal's, or also those of torchrun, MXNet and Paddle."""


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
    node: int = 0
    """Which of the plan's hosts."""
    expendable: bool = False
    """The job goes on without it, should it be killed or lost."""
    listens: str = ""
    """The port, by its name in the plan, that listens from the start and is handed to it, beside the rendezvous."""

    @property
    def name(self) -> str:
        return f"{self.role} {self.rank}"

    @property
    def leads(self) -> bool:
        """The first worker listens at the rendezvous and speaks for all."""
        return self.role == "worker" and self.rank == 0

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
    hosts: tuple[Host, ...] = (Host("localhost"),)
    """Those that take part; `Command.node` counts them."""
    ports: tuple[tuple[str, int], ...] = ()
    """(NAME, node) of every `{port:NAME}` in the commands, beside the rendezvous."""
    ways: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(what for, the command here): those that reach the agents, as `node1 agent`."""
    files: tuple[tuple[str, str], ...] = ()
    """(name, text) of what is written for an engine before the start."""

    @property
    def serves(self) -> bool:
        """Whether servers of Shoal's own take part: they share a secret with the workers."""
        return self.job.worlds == "shoal" and any(command.role == "server" for command in self.commands)

    def text(self) -> str:
        """What --dry-run prints and plan.txt holds. Placeholders stay unfilled: only a start gives them values."""
        ports = f"{self.job.ports.start}-{self.job.ports.stop - 1}" if self.job.ports else "any"
        head = f"launcher: {self.launcher}\nrun: {self.job.run}\nprocesses: {len(self.commands)}\nports: {ports}"
        ways = [f"{whose}\n    {shlex.join(argv)}" for whose, argv in self.ways]
        files = [f"{name}\n" + "\n".join(f"    {line}" for line in text.splitlines()) for name, text in self.files]
        return "\n\n".join([head, *files, *ways, *(command.text() for command in self.commands)]) + "\n"


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
