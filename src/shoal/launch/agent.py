"""Agent: watches over the processes of a job on this host; the first failure ends all of them and is told last."""

from __future__ import annotations

import math
import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from shoal.base.errors import DONE, FAILED, INTERRUPTED
from shoal.launch.child import Child
from shoal.launch.console import Console
from shoal.launch.ending import failures, outcome
from shoal.launch.environment import inherited
from shoal.launch.job import Command, Outcome
from shoal.launch.ports import listen
from shoal.launch.servers import Servers
from shoal.launch.signals import Signals

HOST = "127.0.0.1"
POLL_S = 0.05  # how often to look for ended processes where they cannot be waited for
UNKILLABLE_S = 5.0  # a killed process that is still there after this hangs in the kernel
DYING_S = 1.0  # the rest of a killed group are no children of ours, so they are only looked at until they are gone


class Agent:
    """A Handle on processes of this host.

    From `start` to the end of `wait`, SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on to the workers (SIGHUP as
    SIGTERM), each once; a second SIGINT kills everything. When `wait` returns or raises, nothing is left
    of any process's group.
    """

    def __init__(
        self,
        commands: Sequence[Command],
        *,
        ports: range | None = None,
        console: TextIO | None = None,
        grace_s: float = 2.0,
        leave_s: float = 60.0,
    ) -> None:
        """`console`: where lines for people go (stderr). `grace_s`: after a failure, the time the others have to
        report. `leave_s`: after one worker stopped in good order, the time the others have to do so."""
        self._ports = ports
        self._console = Console(console or sys.stderr)
        self._grace_s, self._leave_s = grace_s, leave_s
        # A worker on a terminal draws there itself (progress, colours); lines passed on would tear its picture.
        self._draws = self._console.is_terminal
        self._children = [Child(command, self._shower(command)) for command in commands]
        self._workers = [child for child in self._children if child.command.role == "worker"]
        self._servers: Servers | None = None
        self._env: dict[str, dict[str, str]] = {}
        self._selector = selectors.DefaultSelector()
        self._signals = Signals()
        self._urgent = 0  # SIGINT so far
        self._ordered: Outcome | None = None
        self._outcome: Outcome | None = None
        self._over = False
        self._lock = threading.Lock()

    def start(self) -> Agent:
        """Starts the processes; UsageError when no port is free."""
        self._signals.catch()
        self._selector.register(self._signals.fd, selectors.EVENT_READ, self._heed_signals)
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Blocks until all have ended. After `timeout_s` seconds they are killed and the job counts as failed."""
        if self._outcome is None:
            try:
                self._watch(timeout_s)
            finally:
                self._end()
            self._outcome = outcome([child.ending for child in self._children], self._ordered)
        return self._outcome

    def status(self) -> dict[str, str]:
        """Each process's name -> `running`, `exit 0`, `killed by SIGKILL` …"""
        for child in self._children:
            child.look()
        return {child.ending.name: child.ending.manner for child in self._children}

    def cancel(self) -> None:
        """Kills everything; `wait` then returns an interrupted Outcome. May be called from any thread."""
        with self._lock:
            if not self._over:
                self._ordered = Outcome(INTERRUPTED, ("cancelled",))
                self._kill()
                self._signals.wake()

    def _shower(self, command: Command) -> Callable[[str], None]:
        """Which lines of a process people see: all of the first worker, warnings of every other process."""
        if _leads(command):
            return (lambda line: None) if self._draws else self._console.show

        def show(line: str) -> None:
            if line.startswith(("WARNING", "ERROR")):
                self._console.show(f"[{command.name}] {line}")

        return show

    def _start(self) -> None:
        env = inherited(os.environ)
        env |= {"PYTHONUNBUFFERED": "1", "SHOAL_PARENT_PID": str(os.getpid())}
        if sys.platform == "linux":
            env.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all meet on this host; its name may resolve to a dead address
        with listen(HOST, self._ports) as listening:
            rendezvous = f"{HOST}:{listening.getsockname()[1]}"
            servers = self._servers = Servers([child.command for child in self._children], HOST, self._ports)
            for child in self._children:
                own = {
                    key: servers.fill(value).replace("{rendezvous}", rendezvous)
                    for key, value in child.command.env.items()
                }
                hand_over = {"SHOAL_LISTEN_FD": listening.fileno()} if _leads(child.command) else {}
                self._env[child.command.name] = env | own
                self._start_child(child, env | own, hand_over | servers.hand_over(child.command))
                if not child.running:
                    break

    def _start_child(self, child: Child, env: dict[str, str], hand_over: dict[str, int]) -> None:
        drawing = self._console.duplicate() if self._draws and _leads(child.command) else None
        if drawing is not None:
            hand_over = {**hand_over, "SHOAL_CONSOLE_FD": drawing}
        try:
            child.start(env | {name: str(number) for name, number in hand_over.items()}, tuple(hand_over.values()))
        finally:
            if drawing is not None:
                os.close(drawing)
        for descriptor, read in child.pipes.items():
            self._selector.register(descriptor, selectors.EVENT_READ, read)
        if child.pidfd is not None:
            self._selector.register(child.pidfd, selectors.EVENT_READ, child.look)

    def _watch(self, timeout_s: float | None) -> None:
        limit = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while self._running() and self._ordered is None:
            deadline = self._deadline()
            self._turn(min(limit, deadline))
            now = time.monotonic()
            if now >= self._deadline():
                return
            if now >= limit:
                self._ordered = Outcome(FAILED, (f"not done after {timeout_s:g} s",))

    def _turn(self, until: float) -> None:
        """Waits for something to happen, at most until `until` on the monotonic clock, and deals with it."""
        wait_s = max(0.0, until - time.monotonic())
        if any(child.running and child.pidfd is None for child in self._children):
            wait_s = min(wait_s, POLL_S)
        for key, _ in self._selector.select(None if wait_s == math.inf else wait_s):
            if not key.data():
                self._selector.unregister(key.fd)
        for child in self._children:
            if child.pidfd is None:
                child.look()
        self._revive()

    def _revive(self) -> None:
        """Starts killed servers again, as long as they have somebody to serve; they go on from their snapshots."""
        for number, dead in enumerate(self._children):
            status = dead.ending.status
            if dead.command.role != "server" or status is None or status >= 0 or dead.ending.killed or self._over:
                continue
            if self._ordered is not None or not any(worker.running for worker in self._workers):
                continue
            for descriptor in (*dead.pipes, dead.pidfd):
                if descriptor is not None and descriptor in self._selector.get_map():
                    self._selector.unregister(descriptor)
            dead.kill()
            dead.close()
            self._console.show(f"WARNING: {dead.command.name} was {dead.ending.manner}; it is started again")
            child = self._children[number] = Child(dead.command, self._shower(dead.command))
            assert self._servers is not None
            self._start_child(child, self._env[child.command.name], self._servers.hand_over(child.command))

    def _running(self) -> bool:
        return any(child.running for child in self._children)

    def _deadline(self) -> float:
        """When those that still run are killed, on the monotonic clock."""
        endings = [child.ending for child in self._children]
        failed = failures(endings)
        if failed:
            return min(ending.since for ending in failed) + self._grace_s
        left = [ending.since for ending in endings if ending.left]
        if left:
            return min(left) + self._leave_s
        workers = [child.ending for child in self._workers]
        if workers and all(
            ending.code == DONE or ending.spared for ending in workers
        ):  # servers have nobody left to serve
            return max(ending.since for ending in workers) + self._leave_s
        return math.inf

    def _heed_signals(self) -> bool:
        for signum in self._signals.read():
            name = signal.Signals(signum).name
            self._urgent += signum == signal.SIGINT  # engines repeat SIGTERM; only a person presses Ctrl-C twice
            if self._urgent > 1:
                self._ordered = Outcome(INTERRUPTED, (f"told to stop a second time ({name})",))
                break
            passed_on = signal.SIGTERM if signum == signal.SIGHUP else signum
            listeners = [child for child in self._workers if child.running and passed_on not in child.ending.told]
            for child in listeners:
                child.tell(passed_on)
            if listeners:
                count = "the worker" if len(listeners) == 1 else f"{len(listeners)} workers"
                self._console.show(f"{name}: passed on to {count}; Ctrl-C or SIGTERM once more kills at once")
        return True

    def _kill(self) -> None:
        for child in self._children:
            child.kill()

    def _end(self) -> None:
        """Leaves nothing behind: no process, no descriptor, no handler."""
        with self._lock:
            if self._over:
                return
            self._kill()
            self._over = True
        limit = time.monotonic() + UNKILLABLE_S
        while self._running() and time.monotonic() < limit:
            self._turn(limit)
        for child in self._children:
            child.close()
        limit = time.monotonic() + DYING_S
        while not all(child.gone for child in self._children) and time.monotonic() < limit:
            time.sleep(0.005)
        self._selector.close()
        self._signals.close()
        if self._servers is not None:
            self._servers.close()


def _leads(command: Command) -> bool:
    """The first worker listens at the rendezvous and speaks for all."""
    return command.role == "worker" and command.rank == 0
