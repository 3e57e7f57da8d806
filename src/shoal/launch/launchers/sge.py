"""sge: Grid Engine. Inside a parallel environment qrsh starts the agents; from outside, qsub takes the whole job."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from shoal.base.errors import FAILED, INTERRUPTED, REQUEUE, ShoalError, UsageError
from shoal.base.run import Run
from shoal.launch.environment import travelling
from shoal.launch.head import Head
from shoal.launch.hosts import Host
from shoal.launch.job import Handle, Job, Outcome, Plan
from shoal.launch.launchers.local import local_line
from shoal.launch.line import Line, Program
from shoal.launch.plan import plan_of
from shoal.launch.queue import Queue, State, Submitted
from shoal.launch.script import ask, script, write_private
from shoal.launch.warden import SILENCE

AGAIN = 99
"""A job that exits with it goes back into Grid Engine's queue."""
_ACCOUNT_S = 30.0
"""How long accounting may lag behind."""
_GONE_CODE = "the accounting (qacct) does not say how it ended"


class Sge(Queue, frozen=True, kw_only=True):
    """Inside a parallel environment `qrsh -inherit` starts the agents; outside, `qsub` submits this very command."""

    CALLED: ClassVar[str] = "Grid Engine"
    name: Literal["sge"] = "sge"

    pe: str | None = None
    """The parallel environment; `qconf -spl` lists them. Needed for more than one worker."""

    queue: str | None = None
    """qsub's -q. None: the site's own."""

    project: str | None = None
    """qsub's -P."""

    time: int | None = None
    """The time limit in minutes. None: the queue's."""

    signal_s: int = 120
    """So many seconds before the time limit all save, and the job goes back into the queue to go on."""

    args: tuple[str, ...] = ()
    """More words for qsub, or inside a job for qrsh, as --launcher-arg gives them."""

    python: str | None = None
    """The interpreter on the hosts. None: the path of this one."""

    def fits(self) -> str | None:
        program = "qsub" if self.submits else "qrsh"
        return None if shutil.which(program) else f"no `{program}` on PATH (Debian: apt-get install gridengine-client)"

    @property
    def submits(self) -> bool:
        return "JOB_ID" not in os.environ or "SGE_ROOT" not in os.environ

    def hosts(self) -> tuple[Host, ...]:
        """Of the parallel environment, the host of this process first."""
        if self.submits:
            return ()
        if "PE_HOSTFILE" not in os.environ:
            return (Host("localhost", slots=1),)
        words = [line.split() for line in Path(os.environ["PE_HOSTFILE"]).read_text().splitlines() if line.strip()]
        hosts = [Host(host, slots=int(slots)) for host, slots, *_ in words]
        return tuple(sorted(hosts, key=lambda host: not host.is_here))

    def plan(self, job: Job) -> Plan:
        return self._submission(job) if self.submits else self._given(job)

    def start(self, plan: Plan) -> Handle:
        if self.submits:
            return Submitted(self, plan)

        def connect(host: Host, plan: Plan, terminal: int | None) -> Line:
            if host.is_here:
                return local_line(host, plan, terminal)
            reason = lambda code, said: f"{host.name}: {said.strip().splitlines()[-1] if said.strip() else code}"  # noqa: E731
            return Program(self._qrsh(host, plan), dict(os.environ), reason)

        return Rescheduling(Head(plan, connect).start())

    # Inside a job

    def _given(self, job: Job) -> Plan:
        own = {host.name: host for host in self.hosts()}
        strangers = [host.text for host in job.hosts if host.name not in own]
        if strangers:
            raise UsageError(f"{', '.join(strangers)}: not among this job's hosts ({', '.join(own)}); leave out -H")
        plan = plan_of(replace(job, hosts=job.hosts or tuple(own.values())), self.name)
        away = [host for host in plan.hosts if not host.is_here]
        return replace(plan, ways=tuple((f"{host.text} agent", self._qrsh(host, plan)) for host in away))

    def _qrsh(self, host: Host, plan: Plan) -> tuple[str, ...]:
        """The command here that becomes the agent there: its stdin and stdout are the link, as ssh's are."""
        tag = (f"SHOAL_JOB={plan.job.id}", f"SHOAL_RUN={os.path.abspath(plan.job.run)}")
        tag += (f"{SILENCE}={plan.job.silence_s:g}",)
        tag += tuple(f"{key}={os.environ[key]}" for key in ("PYTHONPATH", "LD_LIBRARY_PATH") if key in os.environ)
        agent = ("env", *tag, self.python or sys.executable, "-m", "shoal", "agent")
        return ("qrsh", "-inherit", *self.args, host.name, "exec", *map(shlex.quote, agent))

    # From outside

    def _submission(self, job: Job) -> Plan:
        if job.hosts:
            raise UsageError("-H: Grid Engine chooses the hosts; wish for some with --launcher-arg")
        count = sum(role.count for role in job.roles if role.name == "worker")
        if count > 1 and self.pe is None:
            raise UsageError("say which parallel environment: --launcher sge:pe=NAME; `qconf -spl` lists them")
        plan = plan_of(replace(job, hosts=(Host("node-0"),), nproc_per_node=None), self.name)
        folder = Run(job.run.absolute()).folder
        text = script(self.python or sys.executable, job, folder / "job.env", os.path.abspath(job.workdir or "."))
        place = folder / "job.sh"
        return replace(plan, files=((str(place), text),), ways=(("submit", self._qsub(job, count, place)),))

    def _qsub(self, job: Job, count: int, place: Path) -> tuple[str, ...]:
        out, err = (str(path).replace("@JOB@", "$JOB_ID") for path in self.output(Run(job.run.absolute()), "@JOB@"))
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", f"shoal-{job.run.name}")
        words = ["-terse", "-N", name, "-o", out, "-e", err, "-S", "/bin/sh", "-r", "y"]
        words += ["-pe", self.pe, str(count)] if self.pe else []
        words += ["-q", self.queue] if self.queue else []
        words += ["-P", self.project] if self.project else []
        if self.time is not None:
            limit_s = 60 * self.time
            words += ["-l", f"h_rt={limit_s},s_rt={max(1, limit_s - self.signal_s)}"]
        return ("qsub", *words, *self.args, str(place))

    def submit(self, plan: Plan) -> str:
        ((place, text),) = plan.files
        values = {**travelling(os.environ, plan.job.env), **plan.job.given}
        write_private(Path(place), text)
        write_private(
            Path(place).with_suffix(".env"), "".join(f"{key}={shlex.quote(value)}\n" for key, value in values.items())
        )
        return ask(plan.ways[0][1]).split(".")[0].split()[-1]

    def look(self, number: str) -> State:
        for line in ask(("qstat", "-u", getpass.getuser())).splitlines():
            words = line.split()
            if words[:1] == [number]:
                word = words[4]
                return State(word, _MEANS.get(word, ""), waits="q" in word)
        return self._ended(number)

    def _ended(self, number: str) -> State:
        limit = time.monotonic() + _ACCOUNT_S
        while True:
            try:
                said = ask(("qacct", "-j", number))
                break
            except ShoalError:
                if time.monotonic() > limit:
                    return State("ended", _GONE_CODE, FAILED)
                time.sleep(1)
        found = dict(line.split(None, 1) for line in said.splitlines() if len(line.split(None, 1)) == 2)
        code, failed = int(found.get("exit_status", "1").split()[0]), found.get("failed", "0").strip()
        if failed.split()[0] == "0":
            return State("finished", "" if code == 0 else f"exit {code}", code)
        return State("ended", failed, INTERRUPTED if "100" in failed or found.get("deleted_by") else code or FAILED)

    def cancel(self, number: str) -> None:
        ask(("qdel", number))


_MEANS = {"qw": "waits for slots", "hqw": "held", "Eqw": "in error: qstat -j says why", "t": "is being moved there",
          "r": "runs", "dr": "is being deleted"}  # fmt: skip


class Rescheduling:
    """A Handle on a job in a parallel environment: told by USR1 that the time limit is near, it is to be run again."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def wait(self, timeout_s: float | None = None) -> Outcome:
        outcome = self._head.wait(timeout_s)
        if outcome.exit_code == REQUEUE and signal.SIGUSR1 in self._head.told:
            return Outcome(AGAIN, (*outcome.lines, "this job goes back into Grid Engine's queue, to go on from here"))
        return outcome

    def status(self) -> dict[str, str]:
        return self._head.status()

    def cancel(self) -> None:
        self._head.cancel()
