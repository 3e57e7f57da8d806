"""Who am I: role, rank and rendezvous of this process, read from the environment that some launcher made."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shoal.base.errors import UsageError


@dataclass(frozen=True)
class World:
    """One process's place in its job. Names are coordinates (`rank_of_node`) or counts (`num_ranks`)."""

    rank: int
    num_ranks: int
    rank_of_node: int
    ranks_per_node: int
    rendezvous: str
    """host:port of rank 0's store."""
    launcher: str
    """What made this world: shoal, torchrun, mpi, slurm, paddle."""
    role: str = "worker"
    node: int = 0
    num_nodes: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.num_ranks:
            raise UsageError(f"{self.launcher}: rank {self.rank} of {self.num_ranks} ranks cannot be")

    @staticmethod
    def from_env(env: Mapping[str, str]) -> World | None:
        """The world of the launcher that started this process, or None when it was started by hand."""
        for made_by in READERS:
            world = made_by(env)
            if world is not None:
                return world
        return None

    def to_env(self) -> dict[str, str]:
        """The variables from which `from_env` reads this world back."""
        return {
            "SHOAL_ROLE": self.role,
            "SHOAL_RANK": str(self.rank),
            "SHOAL_NUM_RANKS": str(self.num_ranks),
            "SHOAL_RANK_OF_NODE": str(self.rank_of_node),
            "SHOAL_RANKS_PER_NODE": str(self.ranks_per_node),
            "SHOAL_NODE": str(self.node),
            "SHOAL_NUM_NODES": str(self.num_nodes),
            "SHOAL_RENDEZVOUS": self.rendezvous,
        }


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise UsageError(f"environment: {name} must be a whole number") from None


def _meeting(env: Mapping[str, str], host: str, job: str) -> str:
    """host:port both for launchers that give no port: the same for all ranks of one job, unlike between jobs."""
    return env.get("SHOAL_RENDEZVOUS") or f"{host}:{20000 + zlib.crc32(job.encode()) % 20000}"


def _shoal(env: Mapping[str, str]) -> World | None:
    if "SHOAL_RANK" not in env:
        return None
    return World(
        rank=_number(env, "SHOAL_RANK"),
        num_ranks=_number(env, "SHOAL_NUM_RANKS"),
        rank_of_node=_number(env, "SHOAL_RANK_OF_NODE", 0),
        ranks_per_node=_number(env, "SHOAL_RANKS_PER_NODE", 1),
        node=_number(env, "SHOAL_NODE", 0),
        num_nodes=_number(env, "SHOAL_NUM_NODES", 1),
        rendezvous=env.get("SHOAL_RENDEZVOUS", "127.0.0.1:0"),
        launcher="shoal",
        role=env.get("SHOAL_ROLE", "worker"),
    )


def _torchrun(env: Mapping[str, str]) -> World | None:
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= env.keys():
        return None
    return World(
        rank=_number(env, "RANK"),
        num_ranks=_number(env, "WORLD_SIZE"),
        rank_of_node=_number(env, "LOCAL_RANK", 0),
        ranks_per_node=_number(env, "LOCAL_WORLD_SIZE", 1),
        node=_number(env, "GROUP_RANK", 0),
        num_nodes=_number(env, "GROUP_WORLD_SIZE", 1),
        rendezvous=f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}",
        launcher="torchrun",
    )


def _open_mpi(env: Mapping[str, str]) -> World | None:
    if "OMPI_COMM_WORLD_SIZE" not in env:
        return None
    return _mpi(
        env,
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        rank_of_node="OMPI_COMM_WORLD_LOCAL_RANK",
        ranks_per_node="OMPI_COMM_WORLD_LOCAL_SIZE",
        job=env.get("PMIX_NAMESPACE", env.get("OMPI_MCA_ess_base_jobid", "")),
    )


def _mpich(env: Mapping[str, str]) -> World | None:
    if "PMI_SIZE" not in env or "SLURM_PROCID" in env:
        return None
    return _mpi(
        env,
        rank="PMI_RANK",
        size="PMI_SIZE",
        rank_of_node="MPI_LOCALRANKID",
        ranks_per_node="MPI_LOCALNRANKS",
        job=env.get("PMI_FD", "") and env.get("PMI_JOBID", env.get("HYDI_CONTROL_FD", "mpich")),
    )


def _mpi(env: Mapping[str, str], *, rank: str, size: str, rank_of_node: str, ranks_per_node: str, job: str) -> World:
    num_ranks = _number(env, size)
    here = _number(env, ranks_per_node, num_ranks)
    if here < num_ranks and "SHOAL_RENDEZVOUS" not in env and "MASTER_ADDR" not in env:
        raise UsageError("mpirun over several hosts: pass -x SHOAL_RENDEZVOUS=FIRST_HOST:PORT so that ranks can meet")
    return World(
        rank=_number(env, rank),
        num_ranks=num_ranks,
        rank_of_node=_number(env, rank_of_node, 0),
        ranks_per_node=here,
        rendezvous=_meeting(env, env.get("MASTER_ADDR", "127.0.0.1"), job),
        launcher="mpi",
    )


def _slurm(env: Mapping[str, str]) -> World | None:
    # An interactive shell or a batch script also has SLURM_PROCID=0; only a step with tasks is a world.
    if "SLURM_PROCID" not in env or env.get("SLURM_STEP_ID") in (None, "", "4294967290", "4294967291"):
        return None
    num_ranks = _number(env, "SLURM_STEP_NUM_TASKS", _number(env, "SLURM_NTASKS", 1))
    if num_ranks == 1 and "SLURM_PTY_PORT" in env:
        return None
    per_node = re.match(r"\d+", env.get("SLURM_STEP_TASKS_PER_NODE", env.get("SLURM_TASKS_PER_NODE", "1")))
    nodes = env.get("SLURM_STEP_NODELIST", env.get("SLURM_JOB_NODELIST", "127.0.0.1"))
    return World(
        rank=_number(env, "SLURM_PROCID"),
        num_ranks=num_ranks,
        rank_of_node=_number(env, "SLURM_LOCALID", 0),
        ranks_per_node=int(per_node[0]) if per_node else 1,
        node=_number(env, "SLURM_NODEID", 0),
        num_nodes=_number(env, "SLURM_STEP_NUM_NODES", _number(env, "SLURM_JOB_NUM_NODES", 1)),
        rendezvous=_meeting(env, first_host(nodes), f"{env.get('SLURM_JOB_ID')}.{env.get('SLURM_STEP_ID')}"),
        launcher="slurm",
    )


def first_host(nodelist: str) -> str:
    """First host of Slurm's compact list: `gpu[03-05,9],cpu1` is gpu03."""
    match = re.match(r"([^,\[]+)(?:\[([^\]]+)\])?", nodelist)
    if match is None:
        raise UsageError(f"Slurm node list {nodelist!r} cannot be read")
    prefix, inside = match[1], match[2]
    return prefix if inside is None else prefix + re.split(r"[-,]", inside)[0]


def _paddle(env: Mapping[str, str]) -> World | None:
    if not {"PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ENDPOINTS"} <= env.keys():
        return None
    endpoints = env["PADDLE_TRAINER_ENDPOINTS"].split(",")
    rank = _number(env, "PADDLE_TRAINER_ID")
    if not 0 <= rank < len(endpoints):
        raise UsageError(f"paddle: rank {rank} of {len(endpoints)} ranks cannot be")
    own = env.get("PADDLE_CURRENT_ENDPOINT", endpoints[rank]).rpartition(":")[0]
    here = [other for other, endpoint in enumerate(endpoints) if endpoint.rpartition(":")[0] == own]
    return World(
        rank=rank,
        num_ranks=_number(env, "PADDLE_TRAINERS_NUM"),
        rank_of_node=here.index(rank) if rank in here else 0,
        ranks_per_node=max(1, len(here)),
        rendezvous=endpoints[0],
        launcher="paddle",
    )


READERS: tuple[Callable[[Mapping[str, str]], World | None], ...] = (
    _shoal,
    _torchrun,
    _open_mpi,
    _mpich,
    _slurm,
    _paddle,
)
"""Asked in this order; Shoal's own words win over those it may be nested in."""
