"""mpi: one mpirun starts the agents, on hosts that it reaches its own way."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from typing import Literal

from shoal.base.errors import UsageError
from shoal.launch.hosts import Host
from shoal.launch.job import Handle, Job, Plan
from shoal.launch.launcher import Launcher
from shoal.launch.plan import plan_of
from shoal.launch.summon import agent_argv, summon, told


class Mpi(Launcher, frozen=True, kw_only=True):
    """One `mpirun` (Open MPI, MPICH) starts an agent on every host. Its loss ends everything there."""

    name: Literal["mpi"] = "mpi"

    program: str = "mpirun"
    """Which mpirun, where there are several: `mpirun.mpich`, or a path."""

    args: tuple[str, ...] = ()
    """More words for it, as --launcher-arg gives them."""

    config: str | None = None
    """A file in the place of ~/.ssh/config (Open MPI only)."""

    python: str | None = None
    """The interpreter on the hosts. None: the path of this one."""

    address: str | None = None
    """Address of this host that the others reach. None: the one on the route to them."""

    def fits(self) -> str | None:
        if shutil.which(self.program):
            return None
        return f"no `{self.program}` on PATH (Debian: apt-get install openmpi-bin, or mpich)"

    def plan(self, job: Job) -> Plan:
        for host in job.hosts:
            if host.user is not None or host.port is not None:
                raise UsageError(f"{host.text}: mpirun takes names alone; put user and port into ~/.ssh/config")
        plan = plan_of(job, self.name)
        return replace(plan, ways=(("agents", self._argv(plan.hosts)),))

    def start(self, plan: Plan) -> Handle:
        return summon(plan, self._argv(plan.hosts), address=self.address)

    def _argv(self, hosts: tuple[Host, ...]) -> tuple[str, ...]:
        names, count = ",".join(host.name for host in hosts), str(len(hosts))
        if _is_mpich(self.program):
            if self.config:
                raise UsageError("MPICH's mpirun takes no --ssh-config; put what it says into ~/.ssh/config")
            words = ["-n", count, "-hosts", names, "-ppn", "1", "-genvlist", ",".join(told())]
        else:
            # Unbound: an agent's workers would share the one core that it was bound to.
            words = ["-np", count, "--host", names, "--map-by", "ppr:1:node", "--bind-to", "none"]
            words += ["--mca", "plm_rsh_args", f"-F {self.config}"] if self.config else []
            words += [word for name in told() for word in ("-x", name)]
        return (self.program, *words, *self.args, *agent_argv(self.python))


@cache
def _is_mpich(program: str) -> bool:
    """Whether it is MPICH's, or a relative of it such as Intel's; Open MPI where it cannot be asked."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, env={**os.environ})
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "HYDRA" in said.stdout.upper() or "Intel" in said.stdout
