"""Head: the launcher's end of a job. It starts the processes, does so again after failures, and says how all ended."""

from __future__ import annotations

import math
import os
import secrets
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from shoal.base.errors import FAILED, INTERRUPTED, REQUEUE, ShoalError, UsageError
from shoal.base.run import Run
from shoal.launch.console import Console
from shoal.launch.fleet import START_S, Connect, Fleet
from shoal.launch.generation import Generation
from shoal.launch.hosts import Host, read_hostfile
from shoal.launch.job import Outcome, Plan
from shoal.launch.link import Message
from shoal.launch.node import Node
from shoal.launch.plan import plan_of
from shoal.launch.regroup import regroup
from shoal.launch.rendezvous import fresh_secrets, meet, where
from shoal.launch.signals import Signals
from shoal.launch.sync import Carrier
from shoal.launch.tagged import kill_tagged
from shoal.launch.warden import STUCK_S, UNKILLABLE_S

JOIN_S = 5.0
"""How long a restart that can do with fewer hosts waits for those that were lost."""


class Head:
    """A Handle on the processes of a plan, wherever they are.

    From `start` to the end of `wait`, SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on to the workers (SIGHUP as
    SIGTERM), each once; a second SIGINT kills everything. When `wait` returns or raises, nothing is left of the job.
    """

    def __init__(
        self, plan: Plan, connect: Connect, *, console: TextIO | None = None, carrier: Carrier | None = None
    ) -> None:
        """`console`: where lines for people go (stderr). `carrier`: copies a run folder that worker 0's host does not
        share with this one."""
        job = plan.job if plan.job.id else replace(plan.job, id=secrets.token_hex(8))
        self._job = job
        self._first = replace(plan, job=job)
        self._now = Generation(self._first, 0)
        self._console = Console(console or sys.stderr)
        self._fleet = Fleet(self._first, connect, self._console, self)
        self._carrier = carrier
        self._signals = Signals()
        self._interrupts = 0
        """SIGINT so far."""
        self.told: set[int] = set()
        """Signals that were to be passed on."""
        self._ordered: Outcome | None = None
        """How the job ends, whatever its processes do."""
        self._outcome: Outcome | None = None
        self._began = time.monotonic()
        self._lock = threading.Lock()

    # What a Handle does

    def start(self) -> Head:
        """Reaches all hosts and starts the processes; UsageError or ShoalError where that cannot be done."""
        self._signals.catch()
        self._fleet.watch.add(self._signals.fd, self._heed_signals)
        try:
            self._fleet.reach(self._first.hosts)
            self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Blocks until all have ended. After `timeout_s` seconds they are killed and the job counts as failed."""
        if self._outcome is None:
            try:
                self._attend(timeout_s)
                while self._ordered is None and self._goes_again():
                    self._attend(timeout_s)
            finally:
                self._end()
            self._outcome = self._outcome or self._now.outcome(self._ordered)
        return self._outcome

    def status(self) -> dict[str, str]:
        """Each process's name -> `running`, `exit 0`, `killed by SIGKILL` …"""
        if not self._fleet.is_over:
            self._fleet.turn(0.0)
        return {name: ending.manner for name, ending in self._now.endings.items()}

    def cancel(self) -> None:
        """Kills everything; `wait` then returns an interrupted Outcome. May be called from any thread."""
        with self._lock:
            if not self._fleet.is_over:
                self._ordered = Outcome(INTERRUPTED, ("cancelled",))
                self._signals.wake()

    # What the fleet asks and tells

    @property
    def is_stopping(self) -> bool:
        return self._ordered is not None

    def heed(self, node: Node, message: Message) -> None:
        if message.get("is") == "line":
            self._console.show(message["text"])
        elif message.get("is") == "signal":
            self._pass_on(message["number"])
        elif (dead := self._now.heed(node, message)) and not (self._fleet.is_over or self._ordered):
            what = f"{dead.place} was {dead.manner}"
            if self._now.revive(node, dead):
                self._console.show(f"WARNING: {what}; it is started again")

    def lost(self, node: Node, at: float) -> None:
        self._now.vanish(node, at)

    def turned(self) -> None:
        late = self._now.look_for_hangs()
        if late:
            self._console.show(late)

    def _heed_signals(self) -> bool:
        for signum in self._signals.read():
            self._pass_on(signum)
        return True

    def _pass_on(self, signum: int) -> None:
        """SIGTERM and the like, sent here or to an agent, are for all workers."""
        name = signal.Signals(signum).name
        self.told.add(signum)
        self._interrupts += signum == signal.SIGINT  # engines repeat SIGTERM; only a person presses Ctrl-C twice
        if self._interrupts > 1:
            self._ordered = self._ordered or Outcome(INTERRUPTED, (f"told to stop a second time ({name})",))
            return
        if not self._now.has_begun or self._now.is_over:
            code = INTERRUPTED if signum == signal.SIGINT else REQUEUE
            when = "before the restart" if self._now.is_over else "before the start"
            self._ordered = self._ordered or Outcome(code, (f"told to stop {when} ({name})",))
            return
        count = self._now.pass_on(self._fleet.nodes, signal.SIGTERM if signum == signal.SIGHUP else signum)
        if count:
            workers = "the worker" if count == 1 else f"{count} workers"
            how = "once more" if self._interrupts else "twice"
            self._console.show(f"{name}: passed on to {workers}; Ctrl-C {how} kills at once")

    # One generation

    def _begin(self) -> None:
        """Starts the processes of the plan, on nodes that are ready."""
        if self._ordered:
            return
        plan, fleet = self._now.plan, self._fleet
        self._carry(back=False)
        values = meet(fleet, plan)
        if self._ordered:
            return
        if len(plan.hosts) > 1 and not self._now.number:
            self._console.show(where(fleet, plan, values))
        nodes = [fleet.nodes[host.text] for host in plan.hosts]
        hidden = fresh_secrets(plan)
        for number, node in enumerate(nodes):
            self._now.start_on(node, number, values, hidden)
        fleet.until(lambda: all(node.has_started or node.lost for node in nodes))
        fleet.all_well([node for node in nodes if not node.lost], lambda node: node.has_started)

    def _attend(self, timeout_s: float | None) -> None:
        """Until all have ended, or those that still run are to be killed."""
        limit = math.inf if timeout_s is None else self._began + timeout_s
        while self._now.is_running and self._ordered is None:
            self._fleet.turn(min(limit, self._now.deadline()))
            now = time.monotonic()
            if self._fleet.fault:
                raise self._fleet.fault
            if now >= self._now.deadline():
                return
            if now >= limit:
                self._ordered = Outcome(FAILED, (f"not done after {timeout_s:g} s",))

    # Restarts

    def _goes_again(self) -> bool:
        """After a failure: kills what is left of this generation and starts the next, if the job has restarts left."""
        number, most = self._now.number, self._job.max_restarts
        if number >= most or self._now.told_at is not None or self._now.outcome().exit_code != FAILED:
            return False
        self._now.is_over = True
        self._kill()
        self._carry(back=True)
        lines = self._now.outcome().lines
        while number < most and self._ordered is None:
            number += 1
            for line in lines:
                self._console.show(line)
            try:
                job = regroup(self._first, self._hosts_now())
                self._now = Generation(plan_of(job, self._first.launcher), number)
                self._tell_restart()
                self._begin()
                return True
            except UsageError:
                raise
            except ShoalError as error:  # another host was lost in these seconds, or has not come back yet
                self._now.is_over = True
                self._kill()
                self._fleet.fault = None
                lines = tuple(str(error).splitlines())
        self._outcome = self._ordered or Outcome(FAILED, lines)
        return False

    def _kill(self) -> None:
        self._fleet.kill()
        self._now.give_up()

    def _tell_restart(self) -> None:
        plan, count = self._now.plan, len(self._now.workers)
        hosts = ", ".join(host.text for host in plan.hosts)
        workers = "1 worker" if count == 1 else f"{count} workers"
        self._console.show(f"restart {self._now.number} of {self._job.max_restarts}: {workers} on {hosts}")

    def _hosts_now(self) -> list[Host]:
        """The job's hosts that answer: also those that do so again, and new lines of the hostfile."""
        hosts = {host.text: host for host in (*self._first.hosts, *self._job.hosts, *self._new_hosts())}
        return self._fleet.reach_again(list(hosts.values()), START_S if self._job.min_workers is None else JOIN_S)

    def _new_hosts(self) -> tuple[Host, ...]:
        if self._job.hostfile is None:
            return ()
        try:
            return read_hostfile(self._job.hostfile)
        except UsageError as error:
            self._console.show(f"WARNING: no new hosts: {error}")
            return ()

    def _carry(self, *, back: bool) -> None:
        """Where worker 0's host does not share the run folder: brings it there before a start, and back after it."""
        leader = next((command for command in self._now.plan.commands if command.leads), None)
        node = self._fleet.nodes.get(leader.host) if leader else None
        if self._carrier is None or node is None or node.is_shared or node.lost or self._job.worlds != "shoal":
            return
        folder = Path(os.path.abspath(self._job.run))
        if not back and not Run(folder).steps_saved():
            return
        if not self._carrier.fits():
            self._console.show(f"WARNING: no `rsync` here, so the run stays on {node.name}: {folder}")
            return
        copy = (self._carrier.fetch if back else self._carrier.push)(node.host, folder)
        while copy.poll() is None and self._interrupts < 2:
            self._fleet.turn(time.monotonic() + 0.05)
        if copy.poll() is None:
            copy.kill()
            copy.wait()
        elif copy.returncode:
            what = f"the run stays on {node.name}" if back else f"the run's checkpoints did not get to {node.name}"
            self._console.show(f"WARNING: {what}: {folder} ({self._carrier.why(node.host, copy)})")

    # The end

    def _end(self) -> None:
        """Leaves nothing behind: no process, no descriptor, no handler."""
        with self._lock:
            if self._fleet.is_over:
                return
            self._fleet.is_over = True
        self._kill()
        self._carry(back=True)
        well = self._now.has_begun and not self._fleet.fault
        self._fleet.close(self._now.outcome(self._ordered).exit_code if well else FAILED)
        here = [node for node in self._fleet.nodes.values() if node.line.is_local]
        if here:  # where the guardians were killed, both at once
            kill_tagged(self._job.id, limit_s=STUCK_S if any(node.stuck for node in here) else UNKILLABLE_S)
        self._signals.close()
        self._console.close()
