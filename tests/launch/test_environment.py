"""What processes inherit, what travels to other hosts, and how placeholders are filled."""

from __future__ import annotations

import pytest

from shoal.launch.environment import fill, inherited, own, travelling


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHASHSEED", "LC_ALL", "LANG", "TZ", "VIRTUAL_ENV"),
        *("OMP_NUM_THREADS", "MKL_DYNAMIC", "CUDA_VISIBLE_DEVICES", "CUDA_MODULE_LOADING", "NCCL_DEBUG", "NVIDIA_TF32"),
        *("GLOO_SOCKET_IFNAME", "TORCH_LOGS", "TORCHINDUCTOR_CACHE", "HF_HOME", "SHOAL_CACHE", "MXNET_PROFILER"),
    ],
)
def test_what_travels(name: str) -> None:
    assert travelling({name: "1"}, {}) == {name: "1"}


@pytest.mark.parametrize(
    "name",
    ["HOME", "USER", "SSH_AUTH_SOCK", "AWS_SECRET_ACCESS_KEY", "MY_PATH", "PATHS", "SHOAL_RANK", "RANK", "DISPLAY"],
)
def test_what_stays(name: str) -> None:
    assert travelling({name: "1"}, {}) == {}


def test_the_jobs_own_variables_travel_too() -> None:
    env = {"TOKEN": "t", "PATH": "p"}
    assert own(env, {"TOKEN": None, "A": "1", "ABSENT": None}) == {"TOKEN": "t", "A": "1"}
    assert travelling(env, {"TOKEN": None, "PATH": "q"}) == {"TOKEN": "t", "PATH": "q"}


def test_placeholders() -> None:
    values = {"rendezvous": "h:1", "address:0": "a", "address:10": "b", "port:worker-1": "77"}
    assert fill("{rendezvous} {address:0}:{port:worker-1} {address:10}", values) == "h:1 a:77 b"
    assert fill("{'json': {}} {port:none} {other} $HOME {{rendezvous}}", values) == (
        "{'json': {}} {port:none} {other} $HOME {h:1}"
    )


@pytest.mark.parametrize(
    "name",
    [
        *("SHOAL_NUM_RANKS", "SHOAL_REPORT_FD", "SHOAL_RENDEZVOUS"),
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_NAME", "MASTER_PORT"),
        *("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "SLURM_PROCID"),
        *("PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_CURRENT_ENDPOINT", "DMLC_PS_ROOT_URI"),
    ],
)
def test_words_of_another_world_are_not_inherited(name: str) -> None:
    assert inherited({name: "1"}) == {}


@pytest.mark.parametrize(
    "name", ["PATH", "SLURM_JOB_ID", "SHOAL_CACHE", "RANKING", "MY_WORLD_SIZE", "SHOAL_ROLE_MODEL", "ROLE_NAMES"]
)
def test_everything_else_is_inherited(name: str) -> None:
    assert inherited({name: "1"}) == {name: "1"}
