"""Place: which process of a job runs on which host."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.base.errors import UsageError
from shoal.launch.hosts import Host
from shoal.launch.job import Job, RoleName

LOCALHOST = Host("localhost")


@dataclass(frozen=True)
class Slot:
    """Where one process runs, and its coordinates among those of its role."""

    role: RoleName
    rank: int
    host: Host
    rank_of_node: int
    """Among the processes of its role on its host."""
    ranks_per_node: int
    node: int
    """Which of the hosts that the job uses, in their order."""
    num_nodes: int

    @property
    def name(self) -> str:
        """worker-1: as in the names of logs and of ports."""
        return f"{self.role}-{self.rank}"


def place(job: Job) -> tuple[Slot, ...]:
    """Every process of `job`, role after role in their order, ranks ascending. Pure.

    Workers go to the hosts in order, then to their slots. A host without `slots` takes --nproc-per-node of them; where
    nobody says how many a host takes, they are dealt out in equal blocks, the first hosts taking what is over. Servers
    take no slots: they go round the hosts that have workers. A scheduler is beside worker 0. Hosts left without a
    worker are no part of the job.
    """
    hosts = job.hosts or (LOCALHOST,)
    counts = _workers_by_host(sum(role.count for role in job.roles if role.name == "worker"), hosts, job.nproc_per_node)
    nodes = [host for host, count in zip(hosts, counts, strict=True) if count] or [hosts[0]]
    worker_nodes = [node for node, count in enumerate(filter(None, counts)) for _ in range(count)]
    slots: list[Slot] = []
    for role in job.roles:
        if role.name == "worker":
            on = worker_nodes
        elif role.name == "server":
            on = [rank % len(nodes) for rank in range(role.count)]
        else:
            on = [0] * role.count
        for rank, node in enumerate(on):
            slots.append(
                Slot(role.name, rank, nodes[node], on[:rank].count(node), on.count(node), node, len(nodes)),
            )
    return tuple(slots)


def room(hosts: tuple[Host, ...], nproc_per_node: int | None) -> int | None:
    """How many workers the hosts take in all; None where nobody says."""
    sizes = _sizes(hosts or (LOCALHOST,), nproc_per_node)
    return None if sizes is None else sum(sizes)


def _sizes(hosts: tuple[Host, ...], nproc_per_node: int | None) -> list[int] | None:
    if nproc_per_node is None and all(host.slots is None for host in hosts):
        return None
    if nproc_per_node is None:
        return [host.slots or 1 for host in hosts]  # beside hosts with slots, one without counts as one
    return [min(nproc_per_node, host.slots or nproc_per_node) for host in hosts]


def _workers_by_host(count: int, hosts: tuple[Host, ...], nproc_per_node: int | None) -> list[int]:
    sizes = _sizes(hosts, nproc_per_node)
    if sizes is None:
        each, over = divmod(count, len(hosts))
        return [each + (index < over) for index in range(len(hosts))]
    if count > sum(sizes):
        shown = ", ".join(f"{host.text}: {size}" for host, size in list(zip(hosts, sizes, strict=True))[:8])
        more = f", … {len(hosts)} hosts" if len(hosts) > 8 else ""
        least = -(-count // len(hosts))
        raise UsageError(
            f"{count} workers for {sum(sizes)} slots ({shown}{more}); ask for fewer with -n, name more hosts, "
            f"or raise slots=N in the hostfile or --nproc-per-node (to {least})"
        )
    counts = []
    for size in sizes:
        counts.append(min(size, count - sum(counts)))
    return counts
