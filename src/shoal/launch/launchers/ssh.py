"""ssh: processes on hosts that ssh reaches without asking for a password."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from shoal.launch.head import Head
from shoal.launch.hosts import Host
from shoal.launch.job import Handle, Job, Plan
from shoal.launch.launcher import Launcher
from shoal.launch.launchers.local import local_line
from shoal.launch.line import Line, Program
from shoal.launch.plan import plan_of
from shoal.launch.reach import Reach
from shoal.launch.sync import Carrier, sync
from shoal.launch.warden import SILENCE


class Ssh(Launcher, frozen=True, kw_only=True):
    """One ssh connection per host, held as long as the job runs: its loss ends everything there."""

    IS_HERE: ClassVar[bool] = True
    name: Literal["ssh"] = "ssh"

    config: str | None = None
    """A file in the place of ~/.ssh/config."""

    options: tuple[str, ...] = ()
    """As behind ssh's -o: `IdentityFile=…`."""

    python: str | None = None
    """The interpreter on the other hosts. None: the path of this one."""

    def fits(self) -> str | None:
        return None if shutil.which("ssh") else "no `ssh` on PATH"

    def plan(self, job: Job) -> Plan:
        plan = plan_of(job, self.name)
        reach = self._reach
        away = [host for host in plan.hosts if not host.is_here]
        return replace(plan, ways=tuple((f"{host.text} agent", _agent(host, plan, reach)) for host in away))

    def start(self, plan: Plan) -> Handle:
        reach = self._reach
        if plan.job.sync_dst_dir is not None:
            away = [host for host in plan.hosts if not host.is_here]
            sync(away, plan.job.workdir or Path(), plan.job.sync_dst_dir, reach)

        def connect(host: Host, plan: Plan, terminal: int | None) -> Line:
            if host.is_here:
                return local_line(host, plan, terminal)
            reason = lambda code, said: reach.reason(host, code, said)  # noqa: E731
            return Program(_agent(host, plan, reach), dict(os.environ), reason)

        return Head(plan, connect, carrier=Carrier(reach)).start()

    @property
    def _reach(self) -> Reach:
        return Reach(self.config, self.options, python=self.python or sys.executable)


def _agent(host: Host, plan: Plan, reach: Reach) -> tuple[str, ...]:
    """The command here that becomes the agent there, with the job's tag."""
    tag = (f"SHOAL_JOB={plan.job.id}", f"SHOAL_RUN={os.path.abspath(plan.job.run)}")
    tag += (f"{SILENCE}={plan.job.silence_s:g}",)
    return reach.argv(host, ("env", *tag, reach.python, "-m", "shoal", "agent"))
