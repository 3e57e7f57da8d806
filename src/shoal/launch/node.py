"""Node: one host of a job, as the launcher sees it at its end of the line."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.launch.hosts import Host
from shoal.launch.job import Command
from shoal.launch.line import Line
from shoal.launch.link import Message


class Node:
    """Says what is wanted of the agent there, and notes what is known of it."""

    def __init__(self, host: Host, line: Line) -> None:
        self.host = host
        self.line = line
        self.is_here = False
        """Whether the agent has spoken."""
        self.is_ready = False
        self.greeted_at = 0.0
        """Unix seconds."""
        self.is_quiet = False
        """Whether nothing of the job was left there when it last looked."""
        self.has_started = False
        self.lost = ""
        """Why nothing more will come from there; empty while all is well."""
        self.crash: tuple[str, ...] = ()
        """The agent's traceback, where it failed."""
        self.crash_log: Path | None = None
        """Where that lies, too."""
        self.address: str | None = None
        """As ssh reached it; None where the agent cannot tell."""
        self.skew_s = 0.0
        """How far its clock is ahead."""
        self.is_shared = True
        """Whether it sees the launcher's run folder."""
        self.interface = ""
        """That of the address where it listens."""
        self.ports: dict[str, int] = {}
        """Those it took for the job."""
        self.pids: dict[str, int | None] = {}
        self.stuck: list[list[Any]] = []
        """[pid, state, name] of processes that SIGKILL does not end."""

    @property
    def name(self) -> str:
        return self.host.text

    def say(self, what: str, **more: Any) -> None:
        if not self.lost:
            self.line.link.send({"do": what, **more})

    def listen(self, names: Sequence[str], address: str, ports: range | None, *, open: Sequence[str]) -> None:
        """`open`: those of `names` that listen at once; others are only kept free."""
        self.ports = {}
        wanted = [ports.start, ports.stop] if ports else None
        self.say("listen", names=list(names), open=list(open), address=address, ports=wanted)

    def start(self, commands: Sequence[Command], logs: Sequence[str], values: Mapping[str, str], **more: Any) -> None:
        self.has_started, self.is_quiet = False, False
        told = [
            {
                "name": command.name,
                "role": command.role,
                "leads": command.leads,
                "listens": "rendezvous" if command.leads else command.listens,
                "argv": command.argv,
                "env": dict(command.env),
                "log": log,
            }
            for command, log in zip(commands, logs, strict=True)
        ]
        self.say("start", commands=told, values=dict(values), **more)

    def here(self, message: Message) -> None:
        self.is_here = True
        self.skew_s = float(message["time"]) - time.time()
        self.address = message["address"]
