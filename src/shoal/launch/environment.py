"""The environment of processes: what they inherit on this host, what travels to others, and its placeholders."""

from __future__ import annotations

import re
from collections.abc import Mapping

_WORLD = re.compile(
    r"""
    SHOAL_(ROLE|RANK|NUM_RANKS|RANK_OF_NODE|RANKS_PER_NODE|NODE|NUM_NODES|RENDEZVOUS|GENERATION|JOB|RUN|SILENCE)$
    | SHOAL_(NUM_WORKERS|\w+_FD)$
    | (LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$ | ROLE_NAME$ | MASTER_(ADDR|PORT)$ | TORCHELASTIC_
    | SHOAL_HEAD(_\w+)?$ | OMPI_COMM_WORLD_ | PMIX?_ | MPI_LOCAL(RANKID|NRANKS)$
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


_TRAVELS = re.compile(
    r"""
    (PATH|LD_LIBRARY_PATH|LIBRARY_PATH|VIRTUAL_ENV|LANG|TZ|OMP_\w+|MKL_\w+|KMP_\w+|OPENBLAS_\w+|NUMEXPR_\w+)$
    | (PYTHON|LC_|CUDA|NVIDIA_|NCCL_|GLOO_|TORCH|TIMM_|HF_|SHOAL_|UCX_|MALLOC_|MXNET_|FLAGS_|GLOG_|DMLC_|PS_)
    """,
    re.VERBOSE,
)
"""How programs are found, and how Python, its libraries, the GPUs and the network between hosts are set up."""
_PLACEHOLDER = re.compile(r"\{(rendezvous(?:_host|_port)?|generation|address:[0-9]+|port:[A-Za-z0-9_-]+)\}")


def travelling(env: Mapping[str, str], job: Mapping[str, str | None]) -> dict[str, str]:
    """What processes on other hosts get of `env`: the names above, and those that the job names."""
    chosen = {key: value for key, value in inherited(env).items() if _TRAVELS.match(key)}
    return chosen | own(env, job)


def own(env: Mapping[str, str], job: Mapping[str, str | None]) -> dict[str, str]:
    """The job's own variables: KEY=VALUE, or a name whose value is this process's."""
    given = {key: env.get(key) if value is None else value for key, value in job.items()}
    return {key: value for key, value in given.items() if value is not None}


def fill(text: str, values: Mapping[str, str]) -> str:
    """`text` with its placeholders filled; other braces, and those without a value, stay as they are."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)
