"""local: all processes on this host."""

from __future__ import annotations

import os
import sys
from typing import ClassVar, Literal

from shoal.base.errors import UsageError
from shoal.launch.head import Head
from shoal.launch.hosts import Host
from shoal.launch.job import Handle, Job, Plan
from shoal.launch.launcher import Launcher
from shoal.launch.line import Line, Program
from shoal.launch.plan import plan_of
from shoal.launch.warden import SILENCE


class Local(Launcher, frozen=True, kw_only=True):
    """All processes on this host, below an agent that ends them when this process ends."""

    IS_HERE: ClassVar[bool] = True
    name: Literal["local"] = "local"

    def fits(self) -> str | None:
        return None if os.name == "posix" else "needs Linux or macOS"

    def plan(self, job: Job) -> Plan:
        elsewhere = [host.text for host in job.hosts if not host.is_here]
        if elsewhere:
            raise UsageError(f"launcher local starts processes on this host only, not on {', '.join(elsewhere)}")
        return plan_of(job, self.name)

    def start(self, plan: Plan) -> Handle:
        return Head(plan, local_line).start()


def local_line(host: Host, plan: Plan, terminal: int | None) -> Line:
    """The agent of this host, with this process's whole environment. `terminal`: for the first worker to draw on."""
    env = {**os.environ, "SHOAL_JOB": plan.job.id, "SHOAL_RUN": os.path.abspath(plan.job.run)}
    env[SILENCE] = f"{plan.job.silence_s:g}"
    env.pop("SHOAL_CONSOLE_FD", None)
    if terminal is not None:
        env["SHOAL_CONSOLE_FD"] = str(terminal)
    argv = (sys.executable, "-m", "shoal", "agent")
    return Program(argv, env, _reason, () if terminal is None else (terminal,), is_agent=True)


def _reason(code: int | None, said: str) -> str:
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
    return f"this host's agent did not start: {last or f'exit {code}'}"
