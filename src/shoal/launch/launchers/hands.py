"""hands: on nodes where people start the same command themselves, one of which leads."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from shoal.base.errors import ShoalError, UsageError
from shoal.launch.hosts import Host
from shoal.launch.job import Handle, Job, Plan
from shoal.launch.launcher import Launcher
from shoal.launch.plan import plan_of


class Hands(Launcher, frozen=True, kw_only=True):
    """Nodes that were started by hand with --node-rank K --num-nodes N --rendezvous HOST:PORT; this one is node 0."""

    name: Literal["hands"] = "hands"
    rendezvous: str = ""
    """host:port where node 0 listens for the others."""
    num_nodes: int = 0
    """Nodes in all."""
    secret_file: str | None = None
    """A file that only its owner can read, with the same secret on all nodes; null: the one SHOAL_SECRET_FILE names."""
    command: str = ""
    """What must be the same on all nodes."""

    def fits(self) -> str | None:
        if os.name != "posix":
            return "needs Linux or macOS"
        return None if self.rendezvous and self.num_nodes else "is chosen by --node-rank, --num-nodes and --rendezvous"

    def plan(self, job: Job) -> Plan:
        nodes = tuple(Host(f"node-{node}") for node in range(self.num_nodes))
        plan = plan_of(replace(job, hosts=nodes), self.name)
        if len(plan.hosts) < self.num_nodes:
            raise UsageError(
                f"{self.num_nodes} nodes, but workers for {len(plan.hosts)} of them only; ask for more with -n or for "
                "fewer on each with --nproc-per-node"
            )
        return plan

    def start(self, plan: Plan) -> Handle:
        from shoal.launch.hands import gather, parse_rendezvous
        from shoal.launch.handshake import read_secret
        from shoal.launch.head import Head
        from shoal.launch.launchers.local import local_line
        from shoal.launch.line import Line
        from shoal.launch.link import Link
        from shoal.launch.seats import Seat

        seat = Seat(0, self.num_nodes, self.command)
        came = gather(parse_rendezvous(self.rendezvous), seat, read_secret(self.secret_file), _show)
        connections: Mapping[str, int] = {f"node-{node}": connection.detach() for node, connection in came.items()}
        left = dict(connections)

        def connect(host: Host, plan: Plan, terminal: int | None) -> Line:
            if host.name == "node-0":
                return local_line(host, plan, terminal)
            if host.name not in left:
                raise ShoalError(f"{host.name} was started by hand and is gone; start all nodes anew")
            descriptor = left.pop(host.name)
            line = Line(Link(descriptor, descriptor))
            line.is_own = True
            return line

        return Head(plan, connect).start()


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
