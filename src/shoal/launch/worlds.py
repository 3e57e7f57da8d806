"""Worlds: what torchrun, MXNet's tracker and Paddle's launcher would have told a process, so that any program runs.

Values hold placeholders, for only the start knows them: `{address:K}` is the address of node K as the others reach it,
`{generation}` counts the restarts so far, `{port:NAME}` is the port that was kept free under NAME on the node that
`ports` names. Nobody of ours listens there: the program does. (A port bound with SO_REUSEADDR and without listen() is
kept from strangers, yet torch, Paddle and MXNet, which set SO_REUSEADDR too, can listen on it.)
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.launch.job import Job
from shoal.launch.place import Slot


def foreign(slot: Slot, slots: Sequence[Slot], job: Job) -> dict[str, str]:
    """The variables of all three worlds for the process in `slot`, one of `slots`. Pure.

    MXNet's are there only when the job has servers: a worker alone would wait for a scheduler for ever. Servers and the
    scheduler have no place in torchrun's world, the scheduler none in Paddle's.
    """
    return {**_torchrun(slot, slots, job), **_mxnet(slot, slots), **_paddle(slot, slots, job)}


SERVERS, NUM_WORKERS = "SHOAL_SERVERS", "SHOAL_NUM_WORKERS"
"""The variables that list host:port of each parameter server of Shoal's own, and say how many workers come to them."""


def served(slots: Sequence[Slot]) -> dict[str, str]:
    """What every process of a job with servers of Shoal's own is told of them. Pure."""
    servers = [_endpoint(other) for other in slots if other.role == "server"]
    return {SERVERS: ",".join(servers), NUM_WORKERS: f"{_count(slots, 'worker')}"} if servers else {}


def server_ports(slots: Sequence[Slot]) -> tuple[tuple[str, int], ...]:
    """(NAME, node) of every port that the variables of `served` speak of. They listen before any process starts."""
    return tuple((slot.name, slot.node) for slot in slots if slot.role == "server")


def ports(slots: Sequence[Slot]) -> tuple[tuple[str, int], ...]:
    """(NAME, node) of every port that the variables of `foreign` speak of."""
    first = slots[0].node
    named = [(slot.name, slot.node) for slot in slots if slot.role in ("worker", "server")]
    scheduler = [("scheduler", slot.node) for slot in slots if slot.role == "scheduler"]
    return (("master", first), *scheduler, *named)


def _torchrun(slot: Slot, slots: Sequence[Slot], job: Job) -> dict[str, str]:
    if slot.role != "worker":
        return {}
    size = _count(slots, "worker")
    return {
        "RANK": f"{slot.rank}",
        "WORLD_SIZE": f"{size}",
        "LOCAL_RANK": f"{slot.rank_of_node}",
        "LOCAL_WORLD_SIZE": f"{slot.ranks_per_node}",
        "GROUP_RANK": f"{slot.node}",
        "GROUP_WORLD_SIZE": f"{slot.num_nodes}",
        "ROLE_RANK": f"{slot.rank}",
        "ROLE_WORLD_SIZE": f"{size}",
        "ROLE_NAME": "default",
        "MASTER_ADDR": f"{{address:{slots[0].node}}}",
        "MASTER_PORT": "{port:master}",
        "TORCHELASTIC_RUN_ID": job.id,
        "TORCHELASTIC_RESTART_COUNT": "{generation}",
        "TORCHELASTIC_MAX_RESTARTS": f"{job.max_restarts}",
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 serves the store itself
    }


def _mxnet(slot: Slot, slots: Sequence[Slot]) -> dict[str, str]:
    scheduler = next((other for other in slots if other.role == "scheduler"), None)
    if scheduler is None:
        return {}
    workers, servers = _count(slots, "worker"), _count(slots, "server")
    own = {
        "worker": {"DMLC_WORKER_ID": f"{slot.rank}", "DMLC_TASK_ID": f"{slot.rank}"},
        "server": {"DMLC_SERVER_ID": f"{slot.rank}", "DMLC_TASK_ID": f"{workers + slot.rank}"},
        "scheduler": {},
    }
    return {
        "DMLC_ROLE": slot.role,
        "DMLC_PS_ROOT_URI": f"{{address:{scheduler.node}}}",
        "DMLC_PS_ROOT_PORT": "{port:scheduler}",
        "DMLC_NUM_WORKER": f"{workers}",
        "DMLC_NUM_SERVER": f"{servers}",
        "DMLC_NODE_HOST": f"{{address:{slot.node}}}",
        "DMLC_NUM_ATTEMPT": "{generation}",
        "DMLC_JOB_CLUSTER": "local" if slot.num_nodes == 1 else "ssh",
        **own[slot.role],
    }


def _paddle(slot: Slot, slots: Sequence[Slot], job: Job) -> dict[str, str]:
    if slot.role == "scheduler":
        return {}
    trainers = [_endpoint(other) for other in slots if other.role == "worker"]
    servers = [_endpoint(other) for other in slots if other.role == "server"]
    world = {
        "PADDLE_JOB_ID": job.id,
        "PADDLE_NNODES": f"{slot.num_nodes}",
        "PADDLE_MASTER": trainers[0],
        "PADDLE_TRAINERS_NUM": f"{len(trainers)}",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(trainers),
        "POD_IP": f"{{address:{slot.node}}}",
        "PADDLE_PORT": f"{{port:{slot.name}}}",
    }
    if servers:
        world["PADDLE_PSERVERS_IP_PORT_LIST"] = ",".join(servers)
    if slot.role == "server":
        return {**world, "TRAINING_ROLE": "PSERVER"}
    return {
        **world,
        "TRAINING_ROLE": "TRAINER",
        "PADDLE_TRAINER_ID": f"{slot.rank}",
        "PADDLE_CURRENT_ENDPOINT": _endpoint(slot),
        "PADDLE_GLOBAL_RANK": f"{slot.rank}",
        "PADDLE_GLOBAL_SIZE": f"{len(trainers)}",
        "PADDLE_LOCAL_RANK": f"{slot.rank_of_node}",
        "PADDLE_RANK_IN_NODE": f"{slot.rank_of_node}",
        "PADDLE_LOCAL_SIZE": f"{slot.ranks_per_node}",
    }


def _endpoint(slot: Slot) -> str:
    return f"{{address:{slot.node}}}:{{port:{slot.name}}}"


def _count(slots: Sequence[Slot], role: str) -> int:
    return sum(slot.role == role for slot in slots)
