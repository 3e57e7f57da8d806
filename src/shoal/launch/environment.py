"""The environment that processes on this host inherit: all of it, but for the words of some other world."""

from __future__ import annotations

import re
from collections.abc import Mapping

_WORLD = re.compile(
    r"""
    SHOAL_(ROLE|RANK|NUM_RANKS|RANK_OF_NODE|RANKS_PER_NODE|NODE|NUM_NODES|RENDEZVOUS|SERVERS|NUM_WORKERS|SECRET_FILE|PARENT_PID|\w+_FD)$
    | (LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$ | ROLE_NAME$ | MASTER_(ADDR|PORT)$ | TORCHELASTIC_
    | OMPI_COMM_WORLD_ | PMI_ | MPI_LOCAL(RANKID|NRANKS)$
    | SLURM_(PROCID|LOCALID|NODEID|STEP_ID)$
    | PADDLE_(TRAINER|CURRENT_ENDPOINT) | DMLC_
    """,
    re.VERBOSE,
)
"""Shoal, torchrun, Open MPI and MPICH, Slurm, Paddle and MXNet: ranks, sizes and meeting points."""


def inherited(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without what says which place its owner has in another world than the one about to be made."""
    return {key: value for key, value in env.items() if not _WORLD.match(key)}
