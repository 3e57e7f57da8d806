"""Agent: starts and watches the processes of a job on one host, as the launcher at the other end of the link says.

It decides nothing but this: when the launcher or the warden is gone or silent, everything here ends. What it says and
is told are the messages that `_heed` takes and `_say` sends.
"""

from __future__ import annotations

import binascii
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from shoal.base.errors import FAILED, ShoalError, UsageError
from shoal.launch.below import kill_below
from shoal.launch.child import Child
from shoal.launch.environment import fill, inherited
from shoal.launch.group import Group
from shoal.launch.interface import interface_of
from shoal.launch.link import FULL, Link, LinkError, Message
from shoal.launch.oom import OutOfMemory
from shoal.launch.output import Output
from shoal.launch.ports import listen, reserve
from shoal.launch.pulses import Pulses
from shoal.launch.signals import Signals
from shoal.launch.warden import STUCK_S, UNKILLABLE_S, Tie, end_warden, guard
from shoal.launch.watch import Watch

TURN_S = 1.0
"""How often to look at beats and silences."""
POLL_S = 0.05
"""How often to look for ended processes where they cannot be waited for."""
CONSOLE = "SHOAL_CONSOLE_FD"
"""The variable that holds a descriptor of the terminal, for the first worker to draw on."""


class Agent:
    """One host's processes, at the end of a link."""

    def __init__(self, link: Link, tie: Tie, group: Group) -> None:
        self._link, self._tie, self._group = link, tie, group
        self._watch = Watch()
        self._signals = Signals()
        self._children: dict[str, Child] = {}
        self._told: set[str] = set()
        """Names of children whose end was said."""
        self._held_back: dict[int, Callable[[], bool]] = {}
        """Pipes that are not read from now, and what reads them."""
        self._held: dict[str, socket.socket] = {}
        """Ports taken for the job, by their names."""
        self._open: set[str] = set()
        """Those of them that listen."""
        self._last: dict[str, Callable[[], str | None]] = {}
        """Starts a process of this generation, by its name, once more."""
        self._secrets: dict[str, Secret] = {}
        """What workers and servers of this generation prove themselves with, by the variable that names the file."""
        self._oom = OutOfMemory()
        self._env: dict[str, str] = {}
        self._workdir: str | None = None
        self._is_shared = True
        """Whether the run folder is the launcher's own."""
        console = os.environ.pop(CONSOLE, None)
        self._console = int(console) if console else None
        self._pulses: Pulses | None = None
        self._warden = os.getppid()
        self._is_stuck = False
        """Whether something here hangs in the kernel."""
        self._is_done = False
        self._code = FAILED
        """This process's exit code: the job's, if the launcher said it."""

    def run(self) -> int:
        """Until the launcher has had enough, or is lost; nothing is left below this process then."""
        self._signals.catch()
        self._watch.add(self._link.reads, self._heed_link)
        self._watch.add(self._tie.reads, self._heed_warden)
        self._watch.add(self._signals.fd, self._heed_signals)
        try:
            self._group.make()
            self._introduce()
            while not self._is_done:
                self._turn()
        except Exception as error:
            self._say("failed", why=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
            raise
        finally:
            self._end()
        return self._code

    def _introduce(self) -> None:
        """Who is here, and how the launcher's host sees this one (ssh tells the addresses it was reached by)."""
        reached = os.environ.get("SSH_CONNECTION", "").split()
        self._say(
            "here",
            host=socket.gethostname(),
            pid=os.getpid(),
            time=time.time(),
            address=reached[2] if len(reached) == 4 else None,
            launcher=reached[0] if len(reached) == 4 else None,
        )

    def _turn(self) -> None:
        wait_s = POLL_S if any(child.running and child.pidfd is None for child in self._children.values()) else TURN_S
        self._watch.turn(wait_s)
        for child in self._children.values():
            if child.pidfd is None:
                child.look()
            self._tell_end(child)
        self._beat()
        self._hold_back()
        self._bury()
        for what, positions in self._pulses.look() if self._pulses else ():
            self._say(what, positions=positions)
        why = self._lost()
        if why:
            self._say("leaving", why=why)
            self._is_done = True

    def _lost(self) -> str:
        """Why this agent cannot go on; empty while all is well."""
        limit_s = self._tie.silence_s
        if self._link.is_over:
            return "the launcher closed the connection"
        if self._link.silent_s > limit_s:
            return f"it had heard nothing from the launcher for {limit_s:g} s (was that stopped?)"
        if self._tie.is_over:
            return "its warden was killed"
        if self._tie.silent_s > limit_s:
            return f"its warden did nothing for {limit_s:g} s (was it stopped?)"
        return ""

    def _beat(self) -> None:
        self._link.beat()
        self._link.flush()
        self._tie.beat()

    def _hold_back(self) -> None:
        """While the launcher does not take what is waiting, the processes' output waits in their pipes."""
        full = self._link.unsent > FULL
        if full == bool(self._held_back):
            return
        if not full:
            for descriptor, read in self._held_back.items():
                self._watch.add(descriptor, read)
            self._held_back = {}
            return
        for child in self._children.values():
            self._held_back |= {fd: read for fd, read in child.pipes.items() if fd in self._watch}
        for descriptor in self._held_back:
            self._watch.drop(descriptor)

    def _bury(self) -> None:
        """Adopted orphans that have ended; the job's own processes are buried by `close`."""
        own = {child.pid for child in self._children.values()}
        try:
            with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
                others = [int(pid) for pid in file.read().split() if int(pid) not in own]
        except OSError:
            return
        for pid in others:
            try:
                os.waitpid(pid, os.WNOHANG)
            except OSError:
                pass

    def _say(self, what: str, **more: Any) -> None:
        self._link.send({"is": what, **more})

    # What comes in

    def _heed_warden(self) -> bool:
        self._tie.read()
        return not self._tie.is_over

    def _heed_signals(self) -> bool:
        for signum in self._signals.read():
            self._say("signal", number=signum)
        return True

    def _heed_link(self) -> bool:
        try:
            for message in self._link.receive():
                self._heed(message)
        except LinkError:
            self._is_done = True
        return not self._link.is_over

    def _heed(self, message: Message) -> None:
        match message.get("do"):
            case "hello":
                self._hello(message)
            case "listen":
                self._listen(message)
            case "start":
                self._start(message)
            case "again":
                self._again(message["name"])
            case "tell":
                if child := self._children.get(message["name"]):  # one before it may have been impossible to start
                    child.tell(message["number"])
            case "kill":
                self._kill()
            case "bye":
                self._is_done, self._code = True, message["code"]

    def _hello(self, message: Message) -> None:
        self._tie.silence_s = message["silence_s"]
        self._tie.beat()
        self._workdir = message["workdir"]
        self._pulses = Pulses(message["hang_s"]) if message["pulses"] else None
        self._env = inherited(os.environ) | message["env"]
        self._env |= {"PYTHONUNBUFFERED": "1", "SHOAL_JOB": message["job"], "SHOAL_RUN": message["run"]}
        marker = message["marker"]
        self._is_shared = marker is None or os.path.exists(marker)
        try:
            for name, text in ({} if self._is_shared else message["files"]).items():
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).write_text(text, encoding="utf-8")
        except OSError as error:
            self._say("fault", text=f"run folder {message['run']}: cannot be made ({error.strerror})", usage=False)
            return
        facts = None
        if message["facts"]:
            from shoal.launch.facts import swift_facts

            facts = swift_facts(os.path.join(self._workdir or "", message["data"]) if message["data"] else None)
        self._say("ready", shared=self._is_shared, facts=facts)

    def _listen(self, message: Message) -> None:
        """Takes ports: some listen already and are handed to the process they are for, others are only kept free."""
        ports = range(*message["ports"]) if message["ports"] else None
        address = message["address"]
        self._release()
        self._open = set(message["open"])
        try:
            for name in message["names"]:
                taken = {held.getsockname()[1] for held in self._held.values()}
                self._held[name] = (listen if name in self._open else reserve)(address, ports, taken)
        except (ShoalError, OSError) as error:
            text = str(error) if isinstance(error, ShoalError) else f"cannot listen on {address}: {error.strerror}"
            self._say("fault", text=text, usage=isinstance(error, UsageError))
            return
        ports = {name: held.getsockname()[1] for name, held in self._held.items()}
        self._say("listening", ports=ports, interface=interface_of(address))

    def _start(self, message: Message) -> None:
        values: Mapping[str, str] = message["values"]
        interface = interface_of(message["address"])
        env = {**self._env, "SHOAL_GENERATION": str(message["generation"])}
        if interface:
            env = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface, **env}
            if interface == "lo":  # nccl finds the way between GPUs of one host by itself
                env.pop("NCCL_SOCKET_IFNAME")
        self._forget()
        self._secrets = {name: Secret(text) for name, text in message["secrets"].items()}
        for command in message["commands"]:
            start = partial(self._start_child, command, env, values, message["generation"])
            self._last[command["name"]] = start
            if start():
                break
        if "rendezvous" in self._held:
            self._held.pop("rendezvous").close()  # its worker has it; the others are kept for programs that come later
        if self._pulses:
            self._pulses.started({name: child.pid for name, child in self._children.items()})
        self._say("started", pids={name: child.pid for name, child in self._children.items()})

    def _start_child(
        self, command: Message, env: Mapping[str, str], values: Mapping[str, str], generation: int
    ) -> str | None:
        name, leads = command["name"], command["leads"]
        hand_over: dict[str, int] = {}
        if command["listens"] in self._held:
            hand_over["SHOAL_LISTEN_FD"] = self._held[command["listens"]].fileno()
        if leads and self._console is not None:
            hand_over[CONSOLE] = self._console
        if self._pulses and command["role"] == "worker":
            hand_over |= self._pulses.make(name)
        output = Output(
            Path(command["log"]),
            self._shower(name, leads),
            away=None
            if self._is_shared
            else (lambda data: self._say("log", name=name, data=binascii.b2a_base64(data, newline=False).decode())),
        )
        report = lambda line: self._say("report", name=name, line=line.decode(errors="replace"))  # noqa: E731
        child = Child(name, output, report, self._group.enter)
        own = {key: fill(value, values) for key, value in command["env"].items()}
        argv = [fill(word, values) for word in command["argv"]]
        numbers = {key: str(number) for key, number in hand_over.items()}
        passed = list(hand_over.values())
        for variable, secret in self._secrets.items():
            numbers[variable] = secret.name
            passed += secret.descriptors
        self._children[name] = child
        try:
            fault = child.start(argv, {**env, **own, **numbers}, passed, self._workdir)
        except ShoalError as error:  # no log
            self._say("fault", text=str(error), usage=False)
            return str(error)
        if generation:
            output.note(f"--- restart {generation} ---")
        for descriptor, read in child.pipes.items():
            self._watch.add(descriptor, read)
        if child.pidfd is not None:
            self._watch.add(child.pidfd, child.look)
        if fault:
            self._say("report", name=name, line="", fault=fault)
        return fault

    def _again(self, name: str) -> None:
        """Starts an ended process once more. Those who called it meanwhile wait in its port's queue."""
        child = self._children.pop(name)
        child.kill()
        self._drop(child)
        self._told.discard(name)
        self._last[name]()

    # What goes out

    def _shower(self, name: str, leads: bool) -> Callable[[str], None]:
        """Which lines of a process people see: all of the first worker, warnings of every other process.

        A worker on a terminal draws there itself (progress, colours); lines passed on would tear its picture.
        """
        if leads and self._console is not None:
            return lambda line: None
        if leads:
            return lambda line: self._say("line", text=line)

        def show(line: str) -> None:
            if line.startswith(("WARNING", "ERROR")):
                self._say("line", text=f"[{name}] {line}")

        return show

    def _tell_end(self, child: Child) -> None:
        if child.status is None or child.name in self._told:
            return
        self._told.add(child.name)
        cause = None
        if child.status == -signal.SIGKILL and not child.was_killed:
            cause = self._oom.cause(child.pid)
        self._say(
            "ended",
            name=child.name,
            status=child.status,
            time=time.time(),
            killed=child.was_killed and child.status == -signal.SIGKILL,
            tail=list(child.output.tail),
            cause=cause,
        )

    # The end

    def _kill(self) -> None:
        """Kills everything below this process, and says what could not be killed."""
        for child in self._children.values():
            child.kill()
        self._group.kill()
        stuck = kill_below(limit_s=STUCK_S if self._is_stuck else UNKILLABLE_S, beat=self._beat)
        self._is_stuck = bool(stuck)
        limit = time.monotonic() + UNKILLABLE_S
        # A process's first thread may be gone long before the others, which hold its memory and its ports.
        while not stuck and any(child.look() for child in self._children.values()) and time.monotonic() < limit:
            self._beat()
            time.sleep(0.005)
        for child in self._children.values():
            self._tell_end(child)
        self._say("quiet", stuck=[[process.pid, process.state, process.name] for process in stuck])

    def _forget(self) -> None:
        """Makes room for the next generation."""
        for child in self._children.values():
            self._drop(child)
        if self._pulses:
            self._pulses.forget()
        for secret in self._secrets.values():
            secret.forget()
        self._children, self._told, self._held_back, self._last, self._secrets = {}, set(), {}, {}, {}

    def _drop(self, child: Child) -> None:
        for descriptor in (*child.pipes, *([] if child.pidfd is None else [child.pidfd])):
            self._held_back.pop(descriptor, None)
            self._watch.drop(descriptor)
        child.close()

    def _release(self) -> None:
        for held in self._held.values():
            held.close()
        self._held = {}

    def _end(self) -> None:
        self._kill()
        self._forget()
        self._release()
        if not self._link.is_over:
            self._link.close()
        self._group.close()
        end_warden(self._tie, self._warden)


class Secret:
    """A file that this user's processes below the agent can read, which goes with them."""

    def __init__(self, secret: str) -> None:
        self._path: str | None = None
        self.descriptors: tuple[int, ...] = ()
        """To be handed to those who are to read it."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("shoal-secret")
            os.fchmod(descriptor, 0o600)
            self.descriptors, self.name = (descriptor,), f"/proc/self/fd/{descriptor}"
        else:
            import tempfile  # with all that it imports itself, a tenth of the agent's start

            descriptor, self.name = tempfile.mkstemp(prefix="shoal-secret-")
            self._path = self.name
        os.write(descriptor, secret.encode())
        if self._path:
            os.close(descriptor)

    def forget(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        if self._path:
            Path(self._path).unlink(missing_ok=True)


def main(reads: int = 0, writes: int = 1) -> int:
    """`shoal agent`: warden and agent at the end of the link on these descriptors, stdin and stdout if not said."""
    return guard(reads, writes, lambda tie, group: Agent(Link(reads, writes), tie, group).run())


def _text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()
