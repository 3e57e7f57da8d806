"""ray: one agent on each of so many nodes of a Ray cluster, by a placement group that spreads them strictly."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

from shoal.base.errors import UsageError
from shoal.launch.come import NODE
from shoal.launch.hosts import Host
from shoal.launch.interface import address_towards
from shoal.launch.job import Handle, Job, Plan
from shoal.launch.launcher import Launcher
from shoal.launch.plan import plan_of
from shoal.launch.summon import agent_argv, summon, told


class Ray(Launcher, frozen=True, kw_only=True):
    """Actors of a running Ray cluster start the agents, one on each node. This process is the launcher."""

    name: Literal["ray"] = "ray"

    cluster: str | None = None
    """HOST:PORT of the cluster. None: as RAY_ADDRESS says, else the one that was started on this host."""

    nodes: int | None = None
    """Nodes. None: as many as -n and --nproc-per-node come to, else one per worker."""

    cpus: int | None = None
    """CPUs to hold on each node. None: one for each worker there."""

    gpus: int = 0
    """GPUs to hold on each node."""

    wait_s: int = 900
    """How long the cluster may take to have the nodes; an autoscaler starts them meanwhile."""

    python: str | None = None
    """The interpreter on the nodes, with Shoal. None: the path of this one."""

    address: str | None = None
    """Address of this host that the nodes reach. None: the one on the route to the cluster."""

    def fits(self) -> str | None:
        if importlib.util.find_spec("ray") is None:
            return f"no package `ray` for {sys.executable} (pip install ray)"
        return None

    def hosts(self) -> tuple[Host, ...]:
        return tuple(Host(f"node-{node}") for node in range(self.nodes or 0))

    def plan(self, job: Job) -> Plan:
        if any(not host.text.startswith("node-") for host in job.hosts):
            raise UsageError("-H: Ray chooses the nodes; leave it out")
        count = sum(role.count for role in job.roles if role.name == "worker")
        nodes = self.nodes or -(-count // (job.nproc_per_node or 1))
        plan = plan_of(replace(job, hosts=tuple(Host(f"node-{node}") for node in range(nodes))), self.name)
        return replace(plan, ways=(("agents", self._argv(plan)),))

    def start(self, plan: Plan) -> Handle:
        own = self.address or self._own_address()
        quiet = {"RAY_USAGE_STATS_ENABLED": "0"}
        return summon(plan, self._argv(plan), address=own, env=quiet, log="ray", wait_s=self.wait_s)

    def _argv(self, plan: Plan) -> tuple[str, ...]:
        most = max(sum(one.node == node for one in plan.commands) for node in range(len(plan.hosts)))
        resources = {"CPU": self.cpus or most, **({"GPU": self.gpus} if self.gpus else {})}
        asked = {"cluster": self.cluster, "nodes": len(plan.hosts), "resources": resources, "rank": NODE,
                 "names": told(), "argv": agent_argv(self.python)}  # fmt: skip
        return (sys.executable, "-m", "shoal.launch.spread", json.dumps(asked))

    def _own_address(self) -> str:
        where = self.cluster or os.environ.get("RAY_ADDRESS") or _noted() or ""
        host = where.removeprefix("ray://").rpartition(":")[0]
        if not host:
            raise UsageError(
                "no Ray cluster: `ray start --head` starts one; or name it: --launcher ray:cluster=HOST:PORT"
            )
        return address_towards(host) or "127.0.0.1"


def _noted() -> str | None:
    """The cluster that `ray start` noted on this host."""
    try:
        return Path("/tmp/ray/ray_current_cluster").read_text().strip()
    except OSError:
        return None
