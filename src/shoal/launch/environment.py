"""The environment that processes on this host inherit: all of it, but for the words of some other world."""

from __future__ import annotations

import re
from collections.abc import Mapping

_WORLD = re.compile(
    r"""
    SHOAL_(ROLE|RANK|NUM_RANKS|RANK_OF_NODE|RANKS_PER_NODE|NODE|NUM_NODES|RENDEZVOUS|PARENT_PID|\w+_FD)$
    | (LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$ | ROLE_NAME$ | MASTER_(ADDR|PORT)$ | TORCHELASTIC_
    | OMPI_COMM_WORLD_ | PMI_ | MPI_LOCAL(RANKID|NRANKS)$
    | SLURM_(PROCID|LOCALID|NODEID|STEP_ID)$
    | PADDLE_(TRAINER|CURRENT_ENDPOINT|GLOBAL_|LOCAL_|RANK_IN_NODE|MASTER|NNODES|PORT|PSERVERS_|JOB_ID)
    | TRAINING_ROLE$ | POD_IP$
    | DMLC_(ROLE|PS_ROOT_|NUM_|NODE_HOST|WORKER_ID|SERVER_ID|TASK_ID|RANK|JOB_CLUSTER)
    """,
    re.VERBOSE,
)
"""Shoal, torchrun, Open MPI and MPICH, Slurm, Paddle and MXNet: ranks, sizes and meeting points."""


def inherited(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without what says which place its owner has in another world than the one about to be made."""
    return {key: value for key, value in env.items() if not _WORLD.match(key)}
