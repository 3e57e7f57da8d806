"""local: all processes on this host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

from shoal.base.errors import UsageError
from shoal.base.run import Run
from shoal.base.world import World
from shoal.launch.agent import Agent
from shoal.launch.job import Command, Handle, Job, Plan, Role
from shoal.launch.launcher import Launcher
from shoal.launch.servers import server_words

HERE = ("localhost", "127.0.0.1")


class Local(Launcher, frozen=True, kw_only=True):
    """All processes on this host, watched over by this process."""

    name: Literal["local"] = "local"

    def fits(self) -> str | None:
        return None if os.name == "posix" else "needs Linux or macOS"

    def plan(self, job: Job) -> Plan:
        elsewhere = [host for host in job.hosts if host not in HERE]
        if elsewhere:
            raise UsageError(f"launcher local starts processes on this host only, not on {', '.join(elsewhere)}")
        return Plan(tuple(command for role in job.roles for command in _commands(role, job)), job, self.name)

    def start(self, plan: Plan) -> Handle:
        return Agent(plan.commands, ports=plan.job.ports).start()


def _commands(role: Role, job: Job) -> Iterator[Command]:
    counts = {other.name: other.count for other in job.roles}
    words = server_words(counts.get("worker", 0), counts.get("server", 0))
    for rank in range(role.count):
        world = World(
            rank=rank,
            num_ranks=role.count,
            rank_of_node=rank,
            ranks_per_node=role.count,
            rendezvous="{rendezvous}",
            launcher="shoal",
            role=role.name,
        )
        yield Command(
            role=role.name,
            rank=rank,
            host="localhost",
            argv=role.argv,
            env={**role.env, **world.to_env(), **words},
            log=Run(job.run).log(role.name, rank),
            expendable=role.expendable and rank > 0,
        )
