"""yarn: containers of one YARN service run the agents, which come to this process."""

from __future__ import annotations

import getpass
import json
import re
import shlex
import sys
from dataclasses import replace
from typing import Any, Literal

from shoal.base.errors import UsageError
from shoal.base.run import Run
from shoal.launch.come import NODE, SECRET, SECRET_FILE
from shoal.launch.hosts import Host
from shoal.launch.interface import address_towards
from shoal.launch.job import Handle, Job, Plan
from shoal.launch.launcher import Launcher
from shoal.launch.plan import plan_of
from shoal.launch.summon import agent_argv, summon, told


class Yarn(Launcher, frozen=True, kw_only=True):
    """One service of YARN's Services API (where the site has it on): a container with an agent for each node."""

    name: Literal["yarn"] = "yarn"

    url: str | None = None
    """Of the ResourceManager: http://HOST:8088. Needed."""

    queue: str | None = None
    """None: the site's own."""

    nodes: int | None = None
    """Containers, each on a host of its own. None: as many as -n and --nproc-per-node come to, else one per worker."""

    cpus: int | None = None
    """Cores of a container. None: one for each worker there."""

    memory_mb: int = 4096
    """Memory of a container, in megabytes."""

    gpus: int = 0
    """GPUs of a container (yarn.io/gpu)."""

    lifetime_s: int = 86400
    """YARN ends the service after so many seconds, should nobody else do."""

    user: str | None = None
    """Who asks, where YARN runs without Kerberos. None: this user."""

    wait_s: int = 900
    """How long the containers may take to come."""

    python: str | None = None
    """The interpreter on the hosts, with Shoal. None: the path of this one."""

    address: str | None = None
    """Address of this host that the others reach. None: the one on the route to the ResourceManager."""

    def fits(self) -> str | None:
        return None if self.url else "say where the ResourceManager is: --launcher yarn:url=http://HOST:8088"

    def faults(self) -> list[tuple[str, str]]:
        if self.url is not None and not re.fullmatch(r"https?://[^/\s]+/?", self.url):
            return [("url", f"expected http://HOST:8088, got {self.url!r}")]
        return []

    def hosts(self) -> tuple[Host, ...]:
        return tuple(Host(f"node-{node}") for node in range(self.nodes or 0))

    def plan(self, job: Job) -> Plan:
        if any(not host.text.startswith("node-") for host in job.hosts):
            raise UsageError("-H: YARN chooses the hosts; leave it out")
        count = sum(role.count for role in job.roles if role.name == "worker")
        nodes = self.nodes or -(-count // (job.nproc_per_node or 1))
        plan = plan_of(replace(job, hosts=tuple(Host(f"node-{node}") for node in range(nodes))), self.name)
        return replace(plan, ways=(("agents", self._argv(plan)),))

    def start(self, plan: Plan) -> Handle:
        assert self.url is not None
        host = re.sub(r"^https?://|:\d+/?$|/$", "", self.url)
        own = self.address or address_towards(host)
        if own is None:
            raise UsageError(f"no way from here to {host}; is the url right?")
        # A service's variables can be read by others; a file on storage that all share cannot.
        secret = Run(plan.job.run.absolute()).folder / ".secret"
        return summon(plan, self._argv(plan), address=own, log="yarn", wait_s=self.wait_s, secret_file=secret)

    def _argv(self, plan: Plan) -> tuple[str, ...]:
        names = [name for name in told() if name != SECRET] + [SECRET_FILE]
        user = self.user if self.user is not None else getpass.getuser()
        asked = {"url": self.url, "user": user, "names": names, "service": self._service(plan)}
        return (sys.executable, "-m", "shoal.launch.service", json.dumps(asked))

    def _service(self, plan: Plan) -> dict[str, Any]:
        """As the Services API documents it."""
        most = max(sum(one.node == node for one in plan.commands) for node in range(len(plan.hosts)))
        resource: dict[str, Any] = {"cpus": self.cpus or most, "memory": str(self.memory_mb)}
        if self.gpus:
            resource["additional"] = {"yarn.io/gpu": {"value": self.gpus, "unit": ""}}
        apart = {"type": "ANTI_AFFINITY", "scope": "NODE", "target_tags": ["agent"]}
        component = {
            "name": "agent",
            "number_of_containers": len(plan.hosts),
            "launch_command": shlex.join(agent_argv(self.python)),
            "restart_policy": "NEVER",
            "resource": resource,
            "configuration": {"env": {NODE: "${COMPONENT_INSTANCE_NAME}"}},  # agent-0, agent-1, …
            "placement_policy": {"constraints": [apart]},
        }
        service: dict[str, Any] = {
            "name": f"shoal-{plan.job.id[:12]}",
            "version": "1",
            "lifetime": str(self.lifetime_s),
            "components": [component],
        }
        return service | ({"queue": self.queue} if self.queue else {})
