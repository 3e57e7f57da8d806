"""Plan: the exact processes of a job, host by host. Pure; what only a start knows are placeholders."""

from __future__ import annotations

from shoal.base.run import Run
from shoal.base.world import World
from shoal.launch.job import Command, Job, Plan, Role
from shoal.launch.place import Slot, place
from shoal.launch.worlds import foreign, ports, served, server_ports


def plan_of(job: Job, launcher: str) -> Plan:
    """Every process of `job`, and where."""
    slots = place(job)
    roles = {role.name: role for role in job.roles}
    hosts = {slot.node: slot.host for slot in slots}
    return Plan(
        tuple(_command(slot, slots, roles[slot.role], job) for slot in slots),
        job,
        launcher,
        tuple(hosts[node] for node in sorted(hosts)),
        ports(slots) if job.worlds == "all" else server_ports(slots),
    )


def _command(slot: Slot, slots: tuple[Slot, ...], role: Role, job: Job) -> Command:
    world = World(
        rank=slot.rank,
        num_ranks=role.count,
        rank_of_node=slot.rank_of_node,
        ranks_per_node=slot.ranks_per_node,
        node=slot.node,
        num_nodes=slot.num_nodes,
        rendezvous="{rendezvous}",
        launcher="shoal",
        role=role.name,
    )
    theirs = foreign(slot, slots, job) if job.worlds == "all" else served(slots)
    listens = slot.name if role.name == "server" and job.worlds == "shoal" else ""
    return Command(
        role=role.name,
        rank=slot.rank,
        host=slot.host.text,
        argv=role.argv,
        env={**role.env, **theirs, **world.to_env()},
        log=Run(job.run).log(role.name, slot.rank),
        node=slot.node,
        # Worker 0 keeps the run folder, which other hosts may not see; on its own host another one takes over.
        expendable=role.expendable and (slot.rank > 0 or slot.num_nodes == 1),
        listens=listens,
    )
