"""Fleet: all hosts of a job at the launcher's end of their lines, from the first word to the last."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from shoal.base.errors import ShoalError, UsageError
from shoal.base.run import Run
from shoal.launch.console import Console
from shoal.launch.environment import own, travelling
from shoal.launch.hosts import Host
from shoal.launch.job import Plan
from shoal.launch.line import Line
from shoal.launch.link import LinkError, Message
from shoal.launch.node import Node
from shoal.launch.warden import UNKILLABLE_S
from shoal.launch.watch import Watch

TURN_S = 0.5
"""How often to look at beats and silences."""
START_S = 30.0
"""How long a host may take to answer, and to do a step of the start."""

Connect = Callable[[Host, Plan, int | None], Line]
"""Opens the line to a host's agent, without waiting for it. The descriptor is of a terminal to draw on, if any."""


class Owner(Protocol):
    """Whose fleet it is."""

    @property
    def is_stopping(self) -> bool:
        """Whether nothing is to be waited for any more."""
        ...

    def heed(self, node: Node, message: Message) -> None:
        """What an agent says of the job's processes."""
        ...

    def lost(self, node: Node, at: float) -> None:
        """Nothing more will come from there, since `at` (unix seconds)."""
        ...

    def turned(self) -> None:
        """Called after every turn."""
        ...


class Fleet:
    """Opens lines, greets the agents there, keeps up the beats, and knows who is lost and why."""

    def __init__(self, plan: Plan, connect: Connect, console: Console, owner: Owner) -> None:
        self.nodes: dict[str, Node] = {}
        """By the host's text."""
        self.watch = Watch()
        self.fault: ShoalError | None = None
        """What an agent found wrong."""
        self.is_over = False
        """Whether all lines are about to be closed."""
        self._plan, self._job = plan, plan.job
        self._connect = connect
        self._console = console
        self._owner = owner
        self._facts: Message | None = None
        """What this host is like, once another one is compared with it."""

    # Turns

    def turn(self, until: float) -> None:
        """Waits for something to happen, at most until `until` on the monotonic clock, and deals with it."""
        self.watch.turn(min(TURN_S, max(0.0, until - time.monotonic())))
        for node in self.nodes.values():
            if node.lost:
                continue
            node.line.link.beat()
            node.line.link.flush()
            if node.is_here and node.line.link.silent_s > self._job.silence_s:
                self.lose(node, f"{node.name} said nothing for {self._job.silence_s:g} s")
        self._owner.turned()

    def until(self, true: Callable[[], bool], limit_s: float = START_S) -> None:
        """Turns until `true`, or the owner stops; at most `limit_s` seconds. Raises what an agent found wrong."""
        limit = time.monotonic() + limit_s
        while not true() and not self._owner.is_stopping and time.monotonic() < limit:
            self.turn(limit)
            if self.fault:
                raise self.fault

    # The start

    def reach(self, hosts: Sequence[Host]) -> None:
        """Opens the lines to all of `hosts`, at once; ShoalError that names every host that does not answer."""
        for host in hosts:
            self._open(host)
        nodes = [self.nodes[host.text] for host in hosts]
        self.until(lambda: all(node.is_ready or node.lost for node in nodes))
        self.all_well(nodes, lambda node: node.is_ready)

    def reach_again(self, hosts: Sequence[Host], limit_s: float) -> list[Host]:
        """Those of `hosts` that answer, also again or for the first time."""
        for host in hosts:
            if host.text in self.nodes:
                if not self.nodes[host.text].lost:
                    continue
                self.nodes[host.text].line.close()
            self._open(host)
        nodes = [self.nodes[host.text] for host in hosts]
        self.until(lambda: all(node.is_ready or node.lost for node in nodes), limit_s)
        self._lose_late(nodes, lambda node: node.is_ready, limit_s)
        return [node.host for node in nodes if not node.lost]

    def all_well(self, nodes: Sequence[Node], done: Callable[[Node], object]) -> None:
        """ShoalError that names every node that is lost or not `done` in time."""
        if self._owner.is_stopping:
            return
        self._lose_late(nodes, done, START_S)
        missing = [line for node in nodes if node.lost for line in (*node.crash, node.lost)]
        if missing:
            raise ShoalError("\n".join(missing))

    def _lose_late(self, nodes: Sequence[Node], done: Callable[[Node], object], limit_s: float) -> None:
        for node in nodes:
            if not (done(node) or node.lost):
                self.lose(node, node.line.why() or f"{node.name}: no answer within {limit_s:g} s")

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
        self.nodes[host.text] = node
        self.watch.add(line.link.reads, lambda: self._heed_link(node))
        if line.errors is not None:
            self.watch.add(line.errors, line.complain)

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
                self.lose(node, check.line())
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

    # What comes in

    def _heed_link(self, node: Node) -> bool:
        link = node.line.link
        try:
            for message in link.receive():
                self._heed(node, message)
        except LinkError as error:
            self.lose(node, f"{node.name}: no agent of Shoal's answers there ({error})")
        if link.is_over and not node.lost:
            self.lose(node, self._why(node))
        return not node.lost

    def _heed(self, node: Node, message: Message) -> None:
        match message.get("is"):
            case "here":
                node.here(message)
                self._greet(node)
            case "ready":
                node.is_ready, node.is_shared = True, message["shared"]
                if message["facts"]:
                    self._compare(node, message["facts"])
            case "listening":
                node.ports, node.interface = message["ports"], message["interface"]
            case "started":
                node.has_started, node.pids = True, message["pids"]
                self._owner.heed(node, message)
            case "fault":
                where = "" if node.line.is_local else f"{node.name}: "
                self.fault = (UsageError if message["usage"] else ShoalError)(where + message["text"])
            case "leaving":
                self.lose(node, f"the agent on {node.name} ended everything there: {message['why']}")
            case "failed":
                node.crash = tuple(message["traceback"].splitlines())
                self._log_crash(node)
                self.lose(node, f"the agent on {node.name} failed, a fault of Shoal's: {message['why']}")
            case "quiet":
                node.is_quiet, node.stuck = True, message["stuck"]
            case _:
                self._owner.heed(node, message)

    def _log_crash(self, node: Node) -> None:
        log = Run(self._job.run).agent_log(node.name)
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with open(log, "a", encoding="utf-8") as file:
                file.write("\n".join((*node.crash, "")))
            node.crash_log = log
        except OSError:
            pass  # people see it all the same

    def _why(self, node: Node) -> str:
        if self.is_over or node.is_quiet:
            return f"{node.name} has ended"
        if node.is_here:
            broke = f"the connection to {node.name} broke{node.line.last_words()}"
            return broke if not node.line.is_local else "the agent was killed"
        return node.line.why() or f"{node.name}: closed the connection at once"

    def lose(self, node: Node, why: str) -> None:
        if node.lost:
            return
        self.watch.drop(node.line.link.reads)
        if node.line.errors is not None:
            self.watch.drop(node.line.errors)
        node.lost = why
        self._owner.lost(node, time.time() - node.line.link.silent_s)
        node.line.cut()

    # The end

    def kill(self) -> None:
        """Leaves nothing of the job's processes on any host that answers."""
        nodes = [node for node in self.nodes.values() if node.is_here and not node.lost]
        for node in nodes:
            node.is_quiet = False
            node.say("kill")
        limit = time.monotonic() + UNKILLABLE_S + 1
        while not all(node.is_quiet or node.lost for node in nodes) and time.monotonic() < limit:
            self.turn(limit)
        for node in nodes:
            if not (node.is_quiet or node.lost):
                self.lose(node, f"{node.name} did not say in time that all has ended there")
            for pid, state, name in node.stuck:
                self._console.show(
                    f"{node.name}: process {pid} ({name}, state {state}) does not end: it hangs in the kernel"
                )

    def close(self, code: int) -> None:
        """Has all agents end with this exit code, and leaves no line and no marker."""
        for node in self.nodes.values():
            node.say("bye", code=code)
            if not (node.is_here or node.lost):
                node.line.cut()  # nobody there has anything to end
        for node in self.nodes.values():
            node.line.close()
        if any(not node.line.is_local for node in self.nodes.values()):
            self._marker().unlink(missing_ok=True)
        self.watch.close()
