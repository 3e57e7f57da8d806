"""Regroup: the same job again on the hosts that are left, with fewer workers where it allows that. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from shoal.base.errors import ShoalError
from shoal.launch.hosts import Host
from shoal.launch.job import Job, Plan


def regroup(first: Plan, hosts: Sequence[Host]) -> Job:
    """The job of `first` (its first start's plan) on `hosts`; ShoalError where they are too few.

    A host takes as many workers as in the first start; one that had none, as many as its slots or the fullest host.
    """
    job = first.job
    placed = Counter(command.host for command in first.commands if command.role == "worker")
    most = max(placed.values(), default=1)
    slots = [placed.get(host.text) or host.slots or job.nproc_per_node or most for host in hosts]
    wanted, room = sum(placed.values()), sum(slots)
    least = job.min_workers or wanted
    count = min(wanted, room)
    if count < least:
        names = ", ".join(host.text for host in hosts) or "no host"
        raise ShoalError(f"cannot restart: {names} can take {room} workers, and the job needs {least}")
    roles = tuple(replace(role, count=count) if role.name == "worker" else role for role in job.roles)
    given = tuple(replace(host, slots=most) for host, most in zip(hosts, slots, strict=True))
    return replace(job, roles=roles, hosts=given, nproc_per_node=None)
