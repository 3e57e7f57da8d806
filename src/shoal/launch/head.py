"""Head: the launcher's end of all links. It starts a job's processes on its hosts, and says how the job ended."""

from __future__ import annotations

import binascii
import math
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from shoal.base.errors import DONE, FAILED, INTERRUPTED, REQUEUE, ShoalError, UsageError
from shoal.base.run import Run
from shoal.launch.certificate import CERTIFICATE_FILE, PLAIN, fresh_certificate
from shoal.launch.console import Console
from shoal.launch.ending import Ending, failures, outcome
from shoal.launch.environment import own, travelling
from shoal.launch.handshake import SECRET_FILE
from shoal.launch.hangs import Hangs
from shoal.launch.hosts import Host, read_hostfile
from shoal.launch.interface import address_towards
from shoal.launch.job import Command, Outcome, Plan
from shoal.launch.line import Line
from shoal.launch.link import LinkError, Message
from shoal.launch.node import Node
from shoal.launch.plan import plan_of
from shoal.launch.regroup import regroup
from shoal.launch.report import Report
from shoal.launch.signals import Signals
from shoal.launch.sync import Carrier
from shoal.launch.tagged import kill_tagged
from shoal.launch.warden import UNKILLABLE_S
from shoal.launch.watch import Watch

TURN_S = 0.5
"""How often to look at beats and silences."""
START_S = 30.0
"""How long a host may take to answer, and to do a step of the start."""
LOOPBACK = "127.0.0.1"

JOIN_S = 5.0
"""How long a restart that can do with fewer hosts waits for those that were lost."""

Connect = Callable[[Host, Plan, int | None], Line]
"""Opens the line to a host's agent, without waiting for it. The descriptor is of a terminal to draw on, if any."""


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
        self._carrier = carrier
        job = plan.job if plan.job.id else replace(plan.job, id=secrets.token_hex(8))
        self._plan = self._first = replace(plan, job=job)
        self._job = job
        self._connect = connect
        self._console = Console(console or sys.stderr)
        self._nodes: dict[str, Node] = {}
        """By the host's text."""
        self._endings: dict[str, Ending] = {}
        """Of this generation, by the process's name."""
        self._logs: dict[str, Path] = {}
        self._where: dict[str, str] = {}
        """The host of each."""
        self._generation = 0
        self._facts: Message | None = None
        """What this host is like, once another one is compared with it."""
        self._watch = Watch()
        self._signals = Signals()
        self._urgent = 0  # SIGINT so far
        self._hangs = Hangs()
        self._told_at: float | None = None
        """When the workers were told to stop, on the monotonic clock."""
        self._ordered: Outcome | None = None
        self._fault: ShoalError | None = None
        self._outcome: Outcome | None = None
        self._over = False
        self._began = time.monotonic()
        self._lock = threading.Lock()

    # What a Handle does

    def start(self) -> Head:
        """Reaches all hosts and starts the processes; UsageError or ShoalError where that cannot be done."""
        self._signals.catch()
        self._watch.add(self._signals.fd, self._heed_signals)
        try:
            self._reach(self._plan.hosts)
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
            self._outcome = self._outcome or self._verdict()
        return self._outcome

    def status(self) -> dict[str, str]:
        """Each process's name -> `running`, `exit 0`, `killed by SIGKILL` …"""
        if not self._over:
            self._turn(0.0)
        return {name: ending.manner for name, ending in self._endings.items()}

    def cancel(self) -> None:
        """Kills everything; `wait` then returns an interrupted Outcome. May be called from any thread."""
        with self._lock:
            if not self._over:
                self._ordered = Outcome(INTERRUPTED, ("cancelled",))
                self._signals.wake()

    # The start

    def _reach(self, hosts: Sequence[Host]) -> None:
        """Opens the lines to all of `hosts`, at once; ShoalError that names every host that does not answer."""
        for host in hosts:
            self._open(host)
        nodes = [self._nodes[host.text] for host in hosts]
        self._until(lambda: all(node.is_ready or node.lost for node in nodes), START_S)
        self._all_well(nodes, lambda node: node.is_ready)

    def _all_well(self, nodes: Sequence[Node], done: Callable[[Node], object]) -> None:
        """ShoalError that names every node that is lost or not `done` in time."""
        if self._ordered:
            return
        for node in nodes:
            if not (done(node) or node.lost):
                self._lose(node, node.line.why() or f"{node.name}: no answer within {START_S:g} s")
        missing = [node.lost for node in nodes if node.lost]
        if missing:
            raise ShoalError("\n".join(missing))

    def _open(self, host: Host) -> None:
        terminal = self._console.duplicate() if host.is_here and self._console.is_terminal else None
        try:
            line = self._connect(host, self._plan, terminal)
        except OSError as error:
            raise ShoalError(f"{host.text}: cannot start {error.filename}: {error.strerror}") from None
        finally:
            if terminal is not None:
                os.close(terminal)
        node = Node(host, line)
        self._nodes[host.text] = node
        self._watch.add(line.link.reads, lambda: self._heed_link(node))
        if line.errors is not None:
            self._watch.add(line.errors, line.complain)

    def _greet(self, node: Node) -> None:
        job, run = self._job, os.path.abspath(self._job.run)
        local, kept = node.line.is_local, node.line.is_own
        node.greeted_at = time.time()
        recipe = Run(Path(run)).recipe
        files = {} if local else {str(path): path.read_text() for path in (recipe,) if path.exists()}
        node.say(
            "hello",
            job=job.id,
            run=run,
            silence_s=job.silence_s,
            workdir=None if kept and job.workdir is None else str(self._workdir(local)),
            env=own(os.environ, job.env) if local or kept else travelling(os.environ, job.env),
            marker=None if local else str(self._marker()),
            files=files,
            facts=not local,
            data=job.data,
            pulses=job.worlds == "shoal",
            hang_s=job.hang_s,
        )

    def _compare(self, node: Node, facts: Message) -> None:
        """A host with other code, or other versions of what computes, would train another model."""
        from shoal.launch.doctor import swift_checks
        from shoal.launch.facts import swift_facts

        if self._facts is None:
            data = os.path.abspath(self._job.data) if self._job.data else None
            self._facts = swift_facts(data)
            self._facts["data_asked"] = data if self._facts["data"] else None  # this host need not have them
        is_ours = self._job.worlds == "shoal"
        fatal = ("interpreter", "packages", "code", "data") if is_ours else ("code",)  # others may need none of those
        for check in swift_checks(node.host, self._facts, facts, node.greeted_at, time.time()):
            if check.verdict == "fault" and check.name in fatal:
                self._lose(node, check.line())
            elif check.verdict != "ok":
                self._console.show(f"WARNING: {check.line()}")

    def _workdir(self, local: bool) -> Path:
        job = self._job
        return Path(os.path.abspath((None if local else job.sync_dst_dir) or job.workdir or "."))

    def _marker(self) -> Path:
        """A file in the run folder by which other hosts see whether it is theirs too."""
        marker = Path(os.path.abspath(self._job.run)) / f".job-{self._job.id}"
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
        return marker

    def _begin(self) -> None:
        """Starts the processes of the plan, on nodes that are ready."""
        if self._ordered:
            return
        plan = self._plan
        self._hangs.forget()
        nodes = [self._nodes[host.text] for host in plan.hosts]
        several = len(nodes) > 1
        self._carry(back=False)
        self._endings = {command.name: self._ending(command, several) for command in plan.commands}
        self._where = {command.name: command.host for command in plan.commands}
        self._logs = {command.name: Path(os.path.abspath(command.log)) for command in plan.commands}
        values = self._meet(nodes)
        if values is None:
            return
        hidden = self._secrets(several) if plan.serves else {}
        for number, node in enumerate(nodes):
            commands = [command for command in plan.commands if command.node == number]
            logs = [str(self._logs[command.name]) for command in commands]
            address = values[f"address:{number}"]
            more = {"generation": self._generation, "address": address, "secrets": hidden}
            for command in commands:
                self._endings[command.name].started = True
                if not node.is_shared:
                    self._open_log(command.name)
            node.start(commands, logs, values, **more)
        self._until(lambda: all(node.has_started or node.lost for node in nodes), START_S)
        self._all_well([node for node in nodes if not node.lost], lambda node: node.has_started)

    def _secrets(self, several: bool) -> dict[str, str]:
        """Variable -> what the file that it names holds, on every host. Another secret for each generation: servers
        know by it which snapshots are not theirs."""
        made = {SECRET_FILE: secrets.token_hex(32)}
        plain = {**os.environ, **own(os.environ, self._job.env)}.get(PLAIN) == "1"
        if several and not plain:
            made[CERTIFICATE_FILE] = fresh_certificate().decode()
        return made

    def _ending(self, command: Command, several: bool) -> Ending:
        return Ending(command.name, command.log, host=command.host if several else "", expendable=command.expendable)

    def _meet(self, nodes: Sequence[Node]) -> dict[str, str] | None:
        """Has ports taken where processes meet; the values of all placeholders. None when told to stop meanwhile."""
        plan = self._plan
        addresses = self._addresses(nodes)
        names: list[list[str]] = [[name for name, at in plan.ports if at == number] for number in range(len(nodes))]
        leader = next((command.node for command in plan.commands if command.leads), 0)
        names[leader].insert(0, "rendezvous")
        asked = [(node, wanted, at) for node, wanted, at in zip(nodes, names, addresses, strict=True) if wanted]
        opened = {"rendezvous", *(command.listens for command in plan.commands)}
        for node, wanted, address in asked:
            node.listen(wanted, address, self._job.ports, open=[name for name in wanted if name in opened])
        self._until(lambda: all(node.ports or node.lost for node, *_ in asked), START_S)
        if self._ordered:
            return None
        self._all_well([node for node, *_ in asked], lambda node: node.ports)
        ports = {name: port for node, *_ in asked for name, port in node.ports.items()}
        host, port = addresses[leader], ports.pop("rendezvous")
        if len(nodes) > 1 and not self._generation:
            first = nodes[leader]
            why = "on the way to the others" if first.line.is_local else "by which it was reached"
            self._console.show(
                f"workers meet at {host}:{port}: {first.interface or 'an address'} of {first.name}, {why}"
            )
        return {
            "rendezvous": f"{host}:{port}",
            "rendezvous_host": host,
            "rendezvous_port": str(port),
            "generation": str(self._generation),
            **{f"address:{number}": address for number, address in enumerate(addresses)},
            **{f"port:{name}": str(port) for name, port in ports.items()},
        }

    def _addresses(self, nodes: Sequence[Node]) -> list[str]:
        """How the hosts reach each other."""
        if len(nodes) == 1 and nodes[0].line.is_local:
            return [LOOPBACK]
        others = [node for node in nodes if not node.line.is_local]
        here = (address_towards(others[0].address or others[0].host.name) if others else None) or LOOPBACK
        return [here if node.line.is_local else node.address or node.host.name for node in nodes]

    # What comes in

    def _until(self, true: Callable[[], bool], limit_s: float) -> None:
        """Turns until `true`, or the end is ordered; at most `limit_s` seconds. Raises what an agent found wrong."""
        limit = time.monotonic() + limit_s
        while not true() and self._ordered is None and time.monotonic() < limit:
            self._turn(limit)
            if self._fault:
                raise self._fault

    def _turn(self, until: float) -> None:
        """Waits for something to happen, at most until `until` on the monotonic clock, and deals with it."""
        wait_s = min(TURN_S, max(0.0, until - time.monotonic()))
        self._watch.turn(wait_s)
        for node in self._nodes.values():
            if node.lost:
                continue
            node.line.link.beat()
            node.line.link.flush()
            if node.is_here and node.line.link.silent_s > self._job.silence_s:
                self._lose(node, f"{node.name} said nothing for {self._job.silence_s:g} s")
        self._look_for_hangs()

    def _look_for_hangs(self) -> None:
        """A worker that holds up all others has failed, and says why; workers missing at the start are named."""
        running = {name for name, ending in self._endings.items() if ending.running}
        busy = {one.host for one in self._plan.commands if one.role == "worker" and one.name in running}
        late = self._hangs.late(busy)
        if late:
            self._console.show(late)
        hang = self._hangs.found(busy, self._job.hang_s or 0.0)
        if hang and not self._endings[hang.name].report:
            self._endings[hang.name].hung = hang.manner
            self._endings[hang.name].reported(Report(hang.manner, "\n".join(hang.lines)))

    def _heed_link(self, node: Node) -> bool:
        link = node.line.link
        try:
            for message in link.receive():
                self._heed(node, message)
        except LinkError as error:
            self._lose(node, f"{node.name}: no agent of Shoal's answers there ({error})")
        if link.is_over and not node.lost:
            self._lose(node, self._why(node))
        return not node.lost

    def _why(self, node: Node) -> str:
        if self._over or node.is_quiet:
            return f"{node.name} has ended"
        if node.is_here:
            return f"the connection to {node.name} broke" if not node.line.is_local else "the agent was killed"
        return node.line.why() or f"{node.name}: closed the connection at once"

    def _lose(self, node: Node, why: str) -> None:
        if node.lost:
            return
        self._watch.drop(node.line.link.reads)
        if node.line.errors is not None:
            self._watch.drop(node.line.errors)
        node.lost = why
        at = time.time() - node.line.link.silent_s
        for name in self._names_on(node):
            if self._endings[name].running:
                self._endings[name].vanished(why, at)
        node.line.cut()

    def _names_on(self, node: Node) -> list[str]:
        """The processes of this generation on a node."""
        return [name for name, host in self._where.items() if host == node.name]

    def _heed(self, node: Node, message: Message) -> None:
        what = message.get("is")
        name = message.get("name", "")
        if what == "here":
            node.here(message)
            self._greet(node)
        elif what == "ready":
            node.is_ready, node.is_shared = True, message["shared"]
            if message["facts"]:
                self._compare(node, message["facts"])
        elif what == "listening":
            node.ports, node.interface = message["ports"], message["interface"]
        elif what == "started":
            node.has_started, node.pids = True, message["pids"]
            for absent in set(self._names_on(node)) - node.pids.keys():
                self._endings[absent].started = False
        elif what == "fault":
            where = "" if node.line.is_local else f"{node.name}: "
            self._fault = (UsageError if message["usage"] else ShoalError)(where + message["text"])
        elif what == "line":
            self._console.show(message["text"])
        elif what == "log":
            self._append(name, binascii.a2b_base64(message["data"]))
        elif what == "report":
            self._heed_report(node, name, message)
        elif what == "ended":
            self._heed_end(node, name, message)
        elif what == "leaving":
            self._lose(node, f"the agent on {node.name} ended everything there: {message['why']}")
        elif what == "quiet":
            node.is_quiet, node.stuck = True, message["stuck"]
        elif what in ("late", "still", "moving"):
            self._hangs.heed(node.name, message)
        elif what == "signal":
            self._pass_on(message["number"])

    def _heed_report(self, node: Node, name: str, message: Message) -> None:
        fault = message.get("fault")
        report = Report(fault) if fault else Report.parse(message["line"].encode())
        if report and name in self._endings:
            self._endings[name].reported(replace(report, time=report.time - (0 if fault else node.skew_s)))

    def _heed_end(self, node: Node, name: str, message: Message) -> None:
        ending = self._endings[name]
        ending.killed = message["killed"]
        ending.tail = tuple(message["tail"])
        ending.cause = message["cause"] or ""
        ending.ended(message["status"], message["time"] - node.skew_s)
        self._revive(node, ending)

    def _revive(self, node: Node, dead: Ending) -> None:
        """Starts a killed server of ours again, as long as it has somebody to serve; it goes on from its snapshot."""
        command = next(command for command in self._plan.commands if command.name == dead.name)
        died = command.role == "server" and dead.status is not None and dead.status < 0 and not dead.killed
        if not (died and self._plan.serves) or self._over or self._ordered or failures(self._others(dead)):
            return
        if not any(self._endings[one.name].running for one in self._plan.commands if one.role == "worker"):
            return
        self._console.show(f"WARNING: {dead.place} was {dead.manner}; it is started again")
        again = self._endings[dead.name] = self._ending(command, several=bool(dead.host))
        again.started = True
        node.say("again", name=dead.name)

    def _others(self, one: Ending) -> list[Ending]:
        return [ending for ending in self._endings.values() if ending is not one]

    def _open_log(self, name: str) -> None:
        path = self._logs[name]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()
        except OSError as error:
            raise ShoalError(f"log {path}: cannot be opened ({error.strerror})") from None

    def _append(self, name: str, data: bytes) -> None:
        """A piece of the log of a process on a host that does not see the run folder."""
        try:
            with open(self._logs[name], "ab") as file:
                file.write(data)
        except OSError:
            pass  # a full disk must not end the training

    def _heed_signals(self) -> bool:
        for signum in self._signals.read():
            self._pass_on(signum)
        return True

    def _pass_on(self, signum: int) -> None:
        """SIGTERM and the like, sent here or to an agent, are for all workers."""
        name = signal.Signals(signum).name
        self._urgent += signum == signal.SIGINT  # engines repeat SIGTERM; only a person presses Ctrl-C twice
        if self._urgent > 1:
            self._ordered = self._ordered or Outcome(INTERRUPTED, (f"told to stop a second time ({name})",))
            return
        if not any(ending.started for ending in self._endings.values()):
            code = INTERRUPTED if signum == signal.SIGINT else REQUEUE
            self._ordered = self._ordered or Outcome(code, (f"told to stop before the start ({name})",))
            return
        passed_on = signal.SIGTERM if signum == signal.SIGHUP else signum
        count = 0
        for command in self._plan.commands:
            ending = self._endings[command.name]
            if command.role == "worker" and ending.running and passed_on not in ending.told:
                ending.told.add(passed_on)
                self._nodes[command.host].say("tell", name=command.name, number=passed_on)
                count += 1
        if count:
            self._told_at = self._told_at or time.monotonic()
            workers = "the worker" if count == 1 else f"{count} workers"
            how = "once more" if self._urgent else "twice"
            self._console.show(f"{name}: passed on to {workers}; Ctrl-C {how} kills at once")

    # The end

    def _attend(self, timeout_s: float | None) -> None:
        limit = math.inf if timeout_s is None else self._began + timeout_s
        while self._running() and self._ordered is None:
            self._turn(min(limit, self._deadline()))
            now = time.monotonic()
            if self._fault:
                raise self._fault
            if now >= self._deadline():
                return
            if now >= limit:
                self._ordered = Outcome(FAILED, (f"not done after {timeout_s:g} s",))

    def _running(self) -> bool:
        return any(ending.running for ending in self._endings.values())

    def _deadline(self) -> float:
        """When those that still run are killed, on the monotonic clock."""
        endings, job = list(self._endings.values()), self._job
        failed = failures(endings)
        if failed:
            return min(ending.since for ending in failed) + job.grace_s
        left = [ending.since for ending in endings if ending.left]
        workers = [self._endings[command.name] for command in self._plan.commands if command.role == "worker"]
        if left and workers and not any(worker.running for worker in workers):  # nobody told the servers
            return max(worker.since for worker in workers) + job.grace_s
        if self._told_at is not None:
            return self._told_at + job.leave_s
        if left:
            return min(left) + job.leave_s
        if workers and all(
            ending.code == DONE or ending.spared for ending in workers
        ):  # servers have nobody left to serve
            return max(ending.since for ending in workers) + job.leave_s
        return math.inf

    # Restarts

    def _goes_again(self) -> bool:
        """After a failure: kills what is left of this generation and starts the next, if the job has restarts left."""
        again = self._generation < self._job.max_restarts and self._told_at is None
        if not (again and self._verdict().exit_code == FAILED):
            return False
        self._kill()
        self._carry(back=True)
        lines = self._verdict().lines
        while self._generation < self._job.max_restarts and self._ordered is None:
            self._generation += 1
            for line in lines:
                self._console.show(line)
            try:
                self._plan = plan_of(regroup(self._first, self._hosts_now()), self._plan.launcher)
                self._tell_restart()
                self._begin()
                return True
            except UsageError:
                raise
            except ShoalError as error:  # another host was lost in these seconds, or has not come back yet
                self._kill()
                self._fault = None
                lines = tuple(str(error).splitlines())
        self._outcome = self._ordered or Outcome(FAILED, lines)
        return False

    def _tell_restart(self) -> None:
        count = sum(command.role == "worker" for command in self._plan.commands)
        hosts = ", ".join(host.text for host in self._plan.hosts)
        workers = "1 worker" if count == 1 else f"{count} workers"
        self._console.show(f"restart {self._generation} of {self._job.max_restarts}: {workers} on {hosts}")

    def _hosts_now(self) -> list[Host]:
        """The job's hosts that answer: also those that do so again, and new lines of the hostfile."""
        hosts = {host.text: host for host in (*self._first.hosts, *self._first.job.hosts, *self._new_hosts())}
        missing = [host for host in hosts.values() if host.text not in self._nodes or self._nodes[host.text].lost]
        for host in missing:
            if host.text in self._nodes:
                self._nodes[host.text].line.close()
            self._open(host)
        nodes = [self._nodes[host.text] for host in hosts.values()]
        limit_s = START_S if self._job.min_workers is None else JOIN_S
        self._until(lambda: all(node.is_ready or node.lost for node in nodes), limit_s)
        for node in nodes:
            if not (node.is_ready or node.lost):
                self._lose(node, node.line.why() or f"{node.name}: no answer within {limit_s:g} s")
        return [node.host for node in nodes if node.is_ready and not node.lost]

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
        leader = next((command for command in self._plan.commands if command.leads), None)
        node = self._nodes.get(leader.host) if leader else None
        if self._carrier is None or node is None or node.is_shared or node.lost or self._job.worlds != "shoal":
            return
        folder = Path(os.path.abspath(self._job.run))
        if not back and not Run(folder).steps_saved():
            return
        if not self._carrier.fits():
            self._console.show(f"WARNING: no `rsync` here, so the run stays on {node.name}: {folder}")
            return
        copy = (self._carrier.fetch if back else self._carrier.push)(node.host, folder)
        while copy.poll() is None and self._urgent < 2:
            self._turn(time.monotonic() + 0.05)
        if copy.poll() is None:
            copy.kill()
            copy.wait()
        elif copy.returncode:
            what = f"the run stays on {node.name}" if back else f"the run's checkpoints did not get to {node.name}"
            self._console.show(f"WARNING: {what}: {folder} ({self._carrier.why(node.host, copy)})")

    # The verdict, and the end

    def _verdict(self) -> Outcome:
        endings = list(self._endings.values())
        if self._ordered and not any(ending.started for ending in endings):
            return self._ordered
        return outcome(endings, self._ordered)

    def _kill(self) -> None:
        """Leaves nothing of this generation on any host that answers."""
        nodes = [node for node in self._nodes.values() if not node.lost]
        for node in nodes:
            node.is_quiet = False
            node.say("kill")
        limit = time.monotonic() + UNKILLABLE_S + 1
        while not all(node.is_quiet or node.lost for node in nodes) and time.monotonic() < limit:
            self._turn(limit)
        for node in nodes:
            if not (node.is_quiet or node.lost):
                self._lose(node, f"{node.name} did not say in time that all has ended there")
            for pid, state, name in node.stuck:
                self._console.show(
                    f"{node.name}: process {pid} ({name}, state {state}) does not end: it hangs in the kernel"
                )

    def _end(self) -> None:
        """Leaves nothing behind: no process, no descriptor, no handler."""
        with self._lock:
            if self._over:
                return
            self._over = True
        self._kill()
        self._carry(back=True)
        has_begun = any(ending.started for ending in self._endings.values())
        code = self._verdict().exit_code if has_begun and not self._fault else FAILED
        for node in self._nodes.values():
            node.say("bye", code=code)
        for node in self._nodes.values():
            node.line.close()
        if any(node.line.is_local for node in self._nodes.values()):
            kill_tagged(self._job.id, limit_s=UNKILLABLE_S)  # where the guardians were killed, both at once
        self._marker_off()
        self._watch.close()
        self._signals.close()
        self._console.close()

    def _marker_off(self) -> None:
        if any(not node.line.is_local for node in self._nodes.values()):
            self._marker().unlink(missing_ok=True)
