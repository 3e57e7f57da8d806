"""World: who am I, in the words of every launcher."""

from __future__ import annotations

import pytest

from shoal.base.errors import UsageError
from shoal.base.world import World, first_host

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "host0",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "job-1",
}
MPICH = {"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "5"}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
}
PADDLE = {
    "PADDLE_TRAINER_ID": "2",
    "PADDLE_TRAINERS_NUM": "3",
    "PADDLE_TRAINER_ENDPOINTS": "a:6170,b:6170,b:6171",
    "PADDLE_CURRENT_ENDPOINT": "b:6171",
}
ALL = {"torchrun": TORCHRUN, "mpi": OPEN_MPI, "slurm": SLURM, "paddle": PADDLE}


def read(env: dict[str, str]) -> World:
    world = World.from_env(env)
    assert world is not None
    return world


def test_own_words_come_back() -> None:
    world = World(3, 4, 1, 2, "host0:1234", "shoal", role="server", node=1, num_nodes=2)
    assert read(world.to_env()) == world


def test_torchrun() -> None:
    assert read(TORCHRUN) == World(3, 4, 1, 2, "host0:29500", "torchrun", node=1, num_nodes=2)


def test_slurm() -> None:
    world = read(SLURM)
    assert (world.rank, world.num_ranks, world.rank_of_node, world.ranks_per_node) == (3, 4, 1, 2)
    assert (world.node, world.num_nodes, world.launcher) == (1, 2, "slurm")
    assert world.rendezvous.startswith("gpu03:")


@pytest.mark.parametrize("env", [OPEN_MPI, MPICH], ids=["open-mpi", "mpich"])
def test_mpi_on_one_host(env: dict[str, str]) -> None:
    world = read(env)
    assert (world.rank, world.num_ranks, world.rank_of_node, world.ranks_per_node) == (1, 2, 1, 2)
    assert world.launcher == "mpi" and world.rendezvous.startswith("127.0.0.1:")


def test_mpi_over_hosts_must_be_told_where_to_meet() -> None:
    spread = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    with pytest.raises(UsageError, match="-x SHOAL_RENDEZVOUS=FIRST_HOST:PORT"):
        World.from_env(spread)
    assert read({**spread, "SHOAL_RENDEZVOUS": "host0:5"}).rendezvous == "host0:5"
    assert read({**spread, "MASTER_ADDR": "host0"}).rendezvous.startswith("host0:")


def test_paddle() -> None:
    assert read(PADDLE) == World(2, 3, 1, 2, "a:6170", "paddle")


@pytest.mark.parametrize("made", ALL, ids=str)
def test_ranks_of_one_job_meet_at_one_place(made: str) -> None:
    names = {
        "torchrun": "RANK",
        "mpi": "OMPI_COMM_WORLD_RANK",
        "slurm": "SLURM_PROCID",
        "paddle": "PADDLE_TRAINER_ID",
    }
    assert read({**ALL[made], names[made]: "0"}).rendezvous == read(ALL[made]).rendezvous


def test_jobs_of_slurm_on_one_host_meet_at_unlike_ports() -> None:
    assert read(SLURM).rendezvous != read({**SLURM, "SLURM_STEP_ID": "1"}).rendezvous


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"PATH": "/bin", "MASTER_ADDR": "host0", "MASTER_PORT": "1"},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {**SLURM, "SLURM_STEP_ID": "4294967290"},
        {key: value for key, value in SLURM.items() if key != "SLURM_STEP_ID"},
        {**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PTY_PORT": "4000"},
        {"PADDLE_TRAINER_ID": "0"},
    ],
    ids=["nothing", "address-only", "half-torchrun", "slurm-shell", "slurm-script", "slurm-terminal", "half-paddle"],
)
def test_started_by_hand(env: dict[str, str]) -> None:
    assert World.from_env(env) is None


def test_own_words_win_over_those_they_are_nested_in() -> None:
    nested = {**TORCHRUN, **OPEN_MPI, **SLURM, **World(0, 2, 0, 2, "here:1", "shoal").to_env()}
    assert read(nested) == World(0, 2, 0, 2, "here:1", "shoal")
    assert read({**SLURM, **TORCHRUN}).launcher == "torchrun"
    assert read({**SLURM, **OPEN_MPI}).launcher == "mpi"
    assert read({**SLURM, **MPICH}).launcher == "slurm"  # srun sets PMI_* too


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        ("torchrun", {"RANK": "4"}),
        ("torchrun", {"RANK": "-1"}),
        ("mpi", {"OMPI_COMM_WORLD_RANK": "2"}),
        ("slurm", {"SLURM_PROCID": "4"}),
        ("paddle", {"PADDLE_TRAINERS_NUM": "2"}),
    ],
)
def test_rank_beyond_the_number_of_ranks(made: str, wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=rf"{made}: rank -?\d of \d ranks cannot be"):
        World.from_env({**ALL[made], **wrong})


def test_paddle_rank_beyond_its_endpoints() -> None:
    with pytest.raises(UsageError, match="paddle: rank 3 of 3 ranks cannot be"):
        World.from_env({**PADDLE, "PADDLE_TRAINER_ID": "3"})


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({**TORCHRUN, "RANK": "zero"}, "RANK"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": ""}, "OMPI_COMM_WORLD_RANK"),
        ({"SHOAL_RANK": "0"}, "SHOAL_NUM_RANKS"),
    ],
)
def test_number_that_is_none_is_named_without_its_value(env: dict[str, str], name: str) -> None:
    with pytest.raises(UsageError, match=f"environment: {name} must be a whole number") as error:
        World.from_env(env)
    assert "zero" not in str(error.value)


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("gpu03", "gpu03"),
        ("gpu03,gpu04", "gpu03"),
        ("gpu[03-05,9],cpu1", "gpu03"),
        ("gpu[7]", "gpu7"),
        ("gpu[7,9-11]", "gpu7"),
        ("a-b[001-128]", "a-b001"),
        ("node1.example.org", "node1.example.org"),
    ],
)
def test_first_host(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


def test_unreadable_node_list() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        first_host("")
