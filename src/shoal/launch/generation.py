"""Generation: the processes of one start of a job, from their plan to how each of them ended."""

from __future__ import annotations

import binascii
import math
import os
import time
from dataclasses import replace
from pathlib import Path

from shoal.base.errors import DONE, ShoalError
from shoal.launch.ending import Ending, failures, outcome
from shoal.launch.hangs import Hangs
from shoal.launch.job import Command, Outcome, Plan
from shoal.launch.link import Message
from shoal.launch.node import Node
from shoal.launch.report import Report


class Generation:
    """Notes what the agents say of its processes; knows when the rest is to be killed, and how it all ended."""

    def __init__(self, plan: Plan, number: int) -> None:
        self.plan = plan
        self.number = number
        """0 for the first start."""
        self.endings = {command.name: self.fresh_ending(command) for command in plan.commands}
        """By the process's name."""
        self.told_at: float | None = None
        """When the workers were told to stop, on the monotonic clock."""
        self.is_over = False
        """Whether it makes room for the next one."""
        self._hangs = Hangs()
        self._logs = {command.name: Path(os.path.abspath(command.log)) for command in plan.commands}

    def fresh_ending(self, command: Command) -> Ending:
        host = command.host if len(self.plan.hosts) > 1 else ""
        return Ending(command.name, command.log, host=host, expendable=command.expendable)

    @property
    def has_begun(self) -> bool:
        return any(ending.started for ending in self.endings.values())

    @property
    def is_running(self) -> bool:
        return any(ending.running for ending in self.endings.values())

    @property
    def workers(self) -> list[Ending]:
        return [self.endings[command.name] for command in self.plan.commands if command.role == "worker"]

    def outcome(self, ordered: Outcome | None = None) -> Outcome:
        """`ordered`: the outcome if somebody had the rest killed."""
        if ordered and not self.has_begun:
            return ordered
        return outcome(list(self.endings.values()), ordered)

    def deadline(self) -> float:
        """When those that still run are to be killed, on the monotonic clock."""
        endings, workers, job = list(self.endings.values()), self.workers, self.plan.job
        failed = failures(endings)
        if failed:
            return min(ending.since for ending in failed) + job.report_s
        left = [ending.since for ending in endings if ending.left]
        if left and workers and not any(worker.running for worker in workers):  # nobody told the servers
            return max(worker.since for worker in workers) + job.report_s
        if self.told_at is not None:
            return self.told_at + job.grace_s
        if left:
            return min(left) + job.grace_s
        if workers and all(worker.code == DONE or worker.spared for worker in workers):
            return max(ending.since for ending in workers) + job.grace_s  # servers have nobody left to serve
        return math.inf

    # The start

    def start_on(self, node: Node, number: int, values: dict[str, str], secrets: dict[str, str]) -> None:
        """Has the processes of host `number` of the plan started there. ShoalError where their logs cannot be kept."""
        commands = [command for command in self.plan.commands if command.node == number]
        for command in commands:
            self.endings[command.name].started = True
            if not node.is_shared:
                self._open_log(command.name)
        logs = [str(self._logs[command.name]) for command in commands]
        values = {**values, "generation": str(self.number)}
        address = values[f"address:{number}"]
        node.start(commands, logs, values, generation=self.number, address=address, secrets=secrets)

    def _open_log(self, name: str) -> None:
        path = self._logs[name]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()
        except OSError as error:
            raise ShoalError(f"log {path}: cannot be opened ({error.strerror})") from None

    # What the agents say

    def heed(self, node: Node, message: Message) -> Ending | None:
        """The ending of a process that has ended just now, if that is what was said."""
        name = message.get("name", "")
        if name and name not in self.endings:
            return None  # the last words of one before, whose place nobody has now
        match message["is"]:
            case "started":
                for absent in set(self._names_on(node)) - node.pids.keys():
                    self.endings[absent].started = False
            case "log":
                self._append(name, binascii.a2b_base64(message["data"]))
            case "report":
                self._heed_report(node, name, message)
            case "late" | "still" | "moving":
                self._hangs.heed(node.name, message)
            case "ended":
                ending = self.endings[name]
                ending.killed, ending.tail = message["killed"], tuple(message["tail"])
                ending.cause = message["cause"] or ""
                ending.ended(message["status"], message["time"] - node.skew_s)
                return ending
        return None

    def vanish(self, node: Node, at: float) -> None:
        """Nothing more will come from there, since `at` (unix seconds)."""
        for name in self._names_on(node):
            ending = self.endings[name]
            if ending.running:
                ending.vanished(node.lost, at)
                ending.crash, ending.log = node.crash, node.crash_log or ending.log

    def give_up(self) -> None:
        """Those that were killed and still run will not end: they hang in the kernel."""
        for ending in self.endings.values():
            ending.stuck = ending.running

    def look_for_hangs(self) -> str:
        """A worker that holds up all others has failed, and says why. A line that names who is missing at the start,
        once; else empty."""
        running = {name for name, ending in self.endings.items() if ending.running}
        busy = {one.host for one in self.plan.commands if one.role == "worker" and one.name in running}
        hang = self._hangs.found(busy, self.plan.job.hang_s or 0.0)
        if hang and not self.endings[hang.name].report:
            self.endings[hang.name].hung = hang.manner
            self.endings[hang.name].reported(Report(hang.manner, "\n".join(hang.lines)))
        return self._hangs.late(busy)

    def _names_on(self, node: Node) -> list[str]:
        return [command.name for command in self.plan.commands if command.host == node.name]

    def _heed_report(self, node: Node, name: str, message: Message) -> None:
        fault = message.get("fault")
        report = Report(fault) if fault else Report.parse(message["line"].encode())
        if report:
            self.endings[name].reported(replace(report, time=report.time - (0 if fault else node.skew_s)))

    def _append(self, name: str, data: bytes) -> None:
        """A piece of the log of a process on a host that does not see the run folder."""
        try:
            with open(self._logs[name], "ab") as file:
                file.write(data)
        except OSError:
            pass  # a full disk must not end the training

    # What is said to them

    def pass_on(self, nodes: dict[str, Node], signum: int) -> int:
        """Tells all workers that run, each once; how many were told."""
        count = 0
        for command in self.plan.commands:
            ending = self.endings[command.name]
            if command.role == "worker" and ending.running and signum not in ending.told:
                ending.told.add(signum)
                nodes[command.host].say("tell", name=command.name, number=signum)
                count += 1
        if count:
            self.told_at = self.told_at or time.monotonic()
        return count

    def revive(self, node: Node, dead: Ending) -> bool:
        """Starts a killed server of ours again, as long as it has somebody to serve; it goes on from its snapshot.
        Whether it did."""
        command = next(command for command in self.plan.commands if command.name == dead.name)
        died = command.role == "server" and dead.status is not None and dead.status < 0 and not dead.killed
        others = [ending for ending in self.endings.values() if ending is not dead]
        if not (died and self.plan.serves) or failures(others) or not any(worker.running for worker in self.workers):
            return False
        again = self.endings[dead.name] = self.fresh_ending(command)
        again.started = True
        node.say("again", name=dead.name)
        return True
