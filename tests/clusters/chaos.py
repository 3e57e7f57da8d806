"""Chaos: one of a job's processes or connections is killed, stopped or cut at a random time; what becomes of the rest.

    python tests/clusters/chaos.py [--cases 100] [--seed 1] [--only agent-STOP] [--table]

Each case starts the same command at once after the last one's end (so its ports must be free), strikes, and checks
what is promised: 5 s after a closed connection, or that long after --silence, nothing of the job is alive on any host
(by its tag, and by everything that was not there before), and bystanders live on untouched.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster import Hosts, cluster, environment, why_not
from lively import DATA_WORKER

HERE = Path(__file__).parent
SILENCE_S = 3.0
CLOSED_S = 5.0
START_S = 30.0
"""What a host may take to answer at all."""
READY_S = 30.0
PORTS = 15000
"""Where the ports begin that the processes listen on; every cluster has its own, for some run on the head."""
PROCESSES = ("launcher", "agent", "warden", "worker", "data worker", "server", "ssh")
SIGNALS = ("KILL", "STOP", "TERM")
EVENTS = (
    *((target, how) for target in PROCESSES for how in SIGNALS),
    ("sshd", "KILL"),
    ("cable", "cut"),
    ("host", "off"),
)
"""All there is."""
UNNOTICED = {
    ("worker", "STOP"),
    ("server", "STOP"),
    ("data worker", "STOP"),
    ("data worker", "KILL"),
    ("data worker", "TERM"),
}
"""A program of somebody else's goes on, whatever becomes of its children; then the launcher is killed."""
SILENT = {(target, "STOP") for target in ("launcher", "agent", "warden", "ssh")} | {("cable", "cut")}
"""Nothing closes: only the missing beat tells."""


@dataclass(frozen=True)
class Case:
    """What is struck, how, and when."""

    target: str
    how: str
    early: bool = False
    """While the job starts, not when all of it runs."""
    local: bool = False
    """One of the two hosts is the launcher's own."""
    delay_s: float = 0.0

    @property
    def event(self) -> tuple[str, str]:
        return self.target, self.how

    @property
    def name(self) -> str:
        return f"{self.target}-{self.how}" + ("-early" if self.early else "") + ("-local" if self.local else "")

    @property
    def limit_s(self) -> float:
        if self.early and self.event in (("ssh", "STOP"), ("cable", "cut")):
            return CLOSED_S + START_S  # no agent may have answered yet
        return CLOSED_S + (SILENCE_S if self.event in SILENT else 0.0)


@dataclass
class Seen:
    """What came of a case."""

    case: Case
    seconds: float = 0.0
    """From the event until nothing was left."""
    code: int | None = None
    faults: list[str] = field(default_factory=list)
    said: str = ""


def cases(count: int, seed: int) -> list[Case]:
    """Every event in turn, in random order, early or late, with and without the launcher's host."""
    draw = random.Random(seed)
    chosen: list[Case] = []
    while len(chosen) < count:
        turn = list(EVENTS)
        draw.shuffle(turn)
        for target, how in turn:
            local = draw.random() < 0.3 and target not in ("ssh", "sshd", "cable", "host")
            early = draw.random() < 0.25 and (target, how) not in UNNOTICED
            chosen.append(Case(target, how, early, local, draw.random()))
    return chosen[:count]


class Stage:
    """Hosts with bystanders, where one case is played after the other."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self._bystanders: list[tuple[str, int, str]] = []
        """Host, process, its identity."""
        self._place_bystanders()
        self._count = 0

    def play(self, case: Case) -> Seen:
        seen = Seen(case)
        self._count += 1
        self.hosts.mend()
        self._place_bystanders()
        before = self._everybody()
        with self._start(case) as job:
            try:
                self._strike(case, job, seen)
            except AssertionError as error:
                seen.faults.append(str(error))
            self._check_rest(job, before, seen)
        return seen

    def _strike(self, case: Case, job: Job, seen: Seen) -> None:
        if not case.early:
            _wait(job.is_ready, READY_S, f"the job was not ready after {READY_S:g} s", job.process)
        victim = None
        if case.target not in ("cable", "host"):
            victim = _wait(lambda: self._find(case, job), READY_S, f"no {case.target} to strike", job.process)
        time.sleep(case.delay_s * (0.5 if case.early else 1.0))
        began = time.monotonic()
        if case.target == "cable":
            self.hosts.unplug("host1")
        elif case.target == "host":
            self.hosts.off("host1")
        elif victim is not None:
            with contextlib.suppress(ProcessLookupError):  # early, and gone already
                os.kill(victim, getattr(signal, f"SIG{case.how}"))
        if case.event in UNNOTICED:
            time.sleep(SILENCE_S + 1.5)
            if job.process.poll() is not None:
                seen.faults.append(f"ended although nothing of the launcher's own was struck: {job.said()[-500:]}")
            began = time.monotonic()
            job.process.kill()
        spared = {job.process.pid} if case.event == ("launcher", "STOP") else set()
        if spared and not self._left(job, spared):
            job.process.kill()  # struck before it had anybody to leave behind
        limit = began + case.limit_s
        while (left := self._left(job, spared)) and time.monotonic() < limit:
            time.sleep(0.01)
        seen.seconds = time.monotonic() - began
        if left:
            seen.faults.append(f"alive after {case.limit_s:g} s: {', '.join(map(_describe, left[:6]))}")
        if case.event == ("launcher", "STOP"):
            job.process.send_signal(signal.SIGCONT)
        try:
            seen.code = job.process.wait(CLOSED_S)
        except subprocess.TimeoutExpired:
            seen.faults.append(f"the launcher did not end: {job.said()[-500:]}")
        if seen.code == 0:
            seen.faults.append("ended with 0, as if all were well")
        if case.event == ("worker", "KILL") and not case.early and f"worker {job.rank} " not in job.said():
            seen.faults.append(f"worker {job.rank} is not named: {job.said()[-500:]}")

    def _left(self, job: Job, spared: set[int]) -> list[int]:
        """Of the job's own, wherever: tagged, or the launcher and what is below it."""
        return [pid for pid in {*job.tagged(), *job.family()} if pid not in spared and _lives(pid)]

    def _check_rest(self, job: Job, before: set[tuple[int, str]], seen: Seen) -> None:
        seen.said = job.said()
        job.process.kill()  # only what is wrong still runs; it is in the faults already
        job.process.wait()
        # sshd's own processes end a moment after what they ran; without a cable they wait as long as TCP does.
        limit = time.monotonic() + 1.0
        while (new := self._new_since(before)) and time.monotonic() < limit:
            time.sleep(0.02)
        if new:
            seen.faults.append(f"left on the hosts: {', '.join(map(_describe, new[:6]))}")
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for host, pid, identity in self._bystanders:
            if self._is_off(seen.case, host):
                continue
            if _identity(pid) != identity or _state(pid) != "S":
                seen.faults.append(f"a bystander on {host} was hit ({_state(pid) or 'gone'})")
        self._bystanders = [one for one in self._bystanders if _identity(one[1]) == one[2]]

    def _is_off(self, case: Case, host: str) -> bool:
        return case.target == "host" and host == "host1"

    @contextlib.contextmanager
    def _start(self, case: Case) -> Iterator[Job]:
        ready = Path(tempfile.mkdtemp(dir=self.folder))
        hosts = ("localhost", "host1") if case.local else self.hosts.names[:2]
        words = ["launch", "-n", "4", "-s", "1", "-H", ",".join(hosts), "--nproc-per-node", "2"]
        words += ["--ssh-config", str(self.hosts.ssh_config), "--silence", f"{SILENCE_S:g}"]
        words += ["--env", f"CHAOS_READY={ready}", "--env", f"CHAOS_PORT={PORTS + 300 * (self.hosts.number % 50)}"]
        words += ["--log-dir", str(ready / "run")]
        words += ["--", sys.executable, "-S", str(HERE / "lively.py")]
        argv = self.hosts.on_head([sys.executable, "-m", "shoal", *words])
        with open(ready / "said", "wb") as said:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                env={**os.environ, "CHAOS_READY": str(ready)},
            )
        job = Job(process, ready)
        try:
            yield job
        finally:
            process.kill()
            process.wait()

    def _find(self, case: Case, job: Job) -> int | None:
        """The process to strike."""
        if case.target == "launcher":
            return job.process.pid
        if case.target in ("ssh", "sshd"):
            clients = [pid for pid in _children(job.process.pid) if _name(pid) == "ssh"]
            if case.target == "ssh":
                return clients[0] if clients else None
            agents = [pid for pid in job.tagged() if "shoal agent" in _command(pid)]
            sessions = [_parent(pid) for pid in agents if _name(_parent(pid)).startswith("sshd")]
            return sessions[0] if sessions else None
        if case.target in ("agent", "warden"):
            tagged = [pid for pid in job.tagged() if "shoal agent" in _command(pid)]
            inner = [pid for pid in tagged if "shoal agent" in _command(_parent(pid))]
            found = inner if case.target == "agent" else [_parent(pid) for pid in inner]
            return found[int(case.delay_s * 10) % len(found)] if found else None
        for pid in job.tagged():
            known = environment(pid)
            role, rank = known.get("SHOAL_ROLE"), known.get("SHOAL_RANK", "")
            if case.target == "data worker":
                if _name(pid) == DATA_WORKER:
                    return pid
            elif role == case.target and _command(pid).endswith("lively.py") and _name(pid) != DATA_WORKER:
                if case.target == "worker":
                    if rank != str(int(case.delay_s * 100) % 4):
                        continue
                    job.rank = int(rank)
                return pid
        return None

    def _everybody(self) -> set[tuple[int, str]]:
        """All processes of the hosts."""
        on = [name for name in self.hosts.names if self.hosts.is_on(name)]
        return {(pid, _identity(pid)) for name in on for pid in self.hosts.pids(name)}

    def _new_since(self, before: set[tuple[int, str]]) -> list[int]:
        """What is on the hosts now and was not `before`, but for sshd."""
        return sorted(pid for pid, _ in self._everybody() - before if _lives(pid) and not _name(pid).startswith("sshd"))

    def _place_bystanders(self) -> None:
        """Processes that look like the job's, with another job's tag and without any."""
        there = {host for host, *_ in self._bystanders}
        for host in ("head", *self.hosts.names):
            if host in there:
                continue
            for tag in ({}, {"SHOAL_JOB": "0123456789abcdef", "SHOAL_ROLE": "worker", "SHOAL_RANK": "0"}):
                words = [sys.executable, "-S", str(HERE / "lively.py"), "bystander"]
                words = ["env", *(f"{key}={value}" for key, value in tag.items()), *words]
                before = self._named("bystander")
                subprocess.Popen(
                    words if host == "head" else self.hosts.argv(host, words),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                fresh = _wait(lambda: self._named("bystander") - before, 5.0, "no bystander")  # noqa: B023
                pid = fresh.pop()
                _wait(lambda: _state(pid) == "S", 5.0, "a restless bystander")  # noqa: B023
                self._bystanders.append((host, pid, _identity(pid)))

    def _named(self, word: str) -> set[int]:
        ending = f"lively.py {word}"
        return {pid for pid in _all() if _command(pid).endswith(ending) and "nsenter" not in _command(pid)}

    def close(self) -> None:
        for host, pid, identity in self._bystanders:
            if host == "head" and _identity(pid) == identity:
                os.kill(pid, signal.SIGKILL)


class Job:
    """The running command."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process, self.folder = process, folder
        self.rank = -1
        self._id = ""

    def is_ready(self) -> bool:
        return len([path for path in self.folder.iterdir() if path.name[-1].isdigit()]) >= 6

    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")

    def tagged(self) -> list[int]:
        """By the tag, which is learnt from the first process that knows our folder."""
        found = []
        for pid in _all():
            known = environment(pid)
            if not self._id and known.get("CHAOS_READY") == str(self.folder) and known.get("SHOAL_JOB"):
                self._id = known["SHOAL_JOB"]
            mine = known.get("CHAOS_READY") == str(self.folder) or (self._id and known.get("SHOAL_JOB") == self._id)
            if mine and known.get("SHOAL_JOB") and _lives(pid):
                found.append(pid)
        return found

    def family(self) -> list[int]:
        """The launcher and what is below it on the head."""
        found, todo = [], [self.process.pid]
        while todo:
            pid = todo.pop()
            if _lives(pid) and pid not in found:
                found.append(pid)
                todo += _children(pid)
        return found


def _wait(true: Callable[[], object], limit_s: float, what: str, process: subprocess.Popen[bytes] | None = None):
    limit = time.monotonic() + limit_s
    while not (value := true()):
        assert time.monotonic() < limit, what
        assert process is None or process.poll() is None, f"{what}: the launcher ended before"
        time.sleep(0.01)
    return value


def _all() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid: int) -> str:
    return (_stat(pid) or [""])[0]


def _lives(pid: int) -> bool:
    return _state(pid) not in ("", "Z", "X")


def _identity(pid: int) -> str:
    """When it was started; with the number it names one process for ever."""
    fields = _stat(pid)
    return fields[19] if fields and fields[0] not in "ZX" else ""


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _describe(pid: int) -> str:
    return f"{pid} {_name(pid)} ({_state(pid)}) {_command(pid)[-60:]}"


def table(seen: Sequence[Seen]) -> str:
    """Per event: cases, faults, and how long until nothing was left."""
    lines = [
        "| struck | how | cases | failed | promised | median | slowest |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for event in EVENTS:
        mine = [one for one in seen if one.case.event == event]
        for limit_s in sorted({one.case.limit_s for one in mine}):
            own = [one for one in mine if one.case.limit_s == limit_s]
            seconds = [one.seconds for one in own]
            failed = sum(bool(one.faults) for one in own)
            promised = f"{limit_s:g} s" + (" after the launcher's end" if event in UNNOTICED else "")
            promised += ", before a host has answered" if limit_s > START_S else ""
            figures = f"{statistics.median(seconds):.2f} s | {max(seconds):.2f} s"
            lines.append(f"| {event[0]} | {event[1]} | {len(own)} | {failed} | {promised} | {figures} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--cases", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="cases whose name begins so")
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"not run: {reason}")
        return 0
    chosen = [one for one in cases(options.cases, options.seed) if one.name.startswith(options.only or "")]
    seen: list[Seen] = []
    with tempfile.TemporaryDirectory(prefix="shoal-chaos-") as folder, cluster(2) as hosts:
        stage = Stage(hosts, Path(folder))
        try:
            for number, case in enumerate(chosen, 1):
                one = stage.play(case)
                seen.append(one)
                verdict = "; ".join(one.faults) or "well"
                print(f"{number:4d} {case.name:28s} {one.seconds:6.2f} s  exit {one.code}  {verdict}", flush=True)
                if one.faults:
                    print("     | " + one.said.strip()[-1500:].replace("\n", "\n     | "), flush=True)
        finally:
            stage.close()
    failed = sum(bool(one.faults) for one in seen)
    print(f"\n{table(seen)}\n\n{len(seen)} cases, {failed} failed, seed {options.seed}, {platform.platform()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
