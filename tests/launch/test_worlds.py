"""The worlds of torchrun, MXNet and Paddle for every role; read back by those who read them."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shoal.base.world import World
from shoal.launch.environment import inherited
from shoal.launch.hosts import Host
from shoal.launch.job import Job, Role
from shoal.launch.place import place
from shoal.launch.worlds import foreign, ports


def job(workers: int, servers: int = 0, hosts: int = 1) -> Job:
    roles = [Role("worker", workers, ("x",))]
    if servers:
        roles += [Role("server", servers, ("x",)), Role("scheduler", 1, ("x",))]
    return Job(tuple(roles), Path("run"), hosts=tuple(Host(f"h{k}") for k in range(hosts)), id="0123456789abcdef")


def worlds(asked: Job) -> dict[str, dict[str, str]]:
    slots = place(asked)
    return {slot.name: foreign(slot, slots, asked) for slot in slots}


def test_torchrun() -> None:
    found = worlds(job(4, hosts=2))["worker-3"]
    assert {key: found[key] for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")} == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }
    assert (found["GROUP_RANK"], found["GROUP_WORLD_SIZE"]) == ("1", "2")
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("{address:0}", "{port:master}")


def test_mxnet() -> None:
    found = worlds(job(2, servers=2, hosts=2))
    assert sorted(found) == ["scheduler-0", "server-0", "server-1", "worker-0", "worker-1"]
    for name, world in found.items():
        assert world["DMLC_ROLE"] == name.partition("-")[0]
        assert (world["DMLC_PS_ROOT_URI"], world["DMLC_PS_ROOT_PORT"]) == ("{address:0}", "{port:scheduler}")
        assert (world["DMLC_NUM_WORKER"], world["DMLC_NUM_SERVER"]) == ("2", "2")
    assert found["worker-1"]["DMLC_WORKER_ID"] == "1" and found["server-1"]["DMLC_SERVER_ID"] == "1"
    assert [found[name]["DMLC_NODE_HOST"] for name in ("worker-1", "server-1", "scheduler-0")] == [
        "{address:1}",
        "{address:1}",
        "{address:0}",
    ]
    tasks = [world["DMLC_TASK_ID"] for world in found.values() if "DMLC_TASK_ID" in world]
    assert sorted(tasks) == ["0", "1", "2", "3"]  # dmlc's tracker numbers the servers behind the workers


def test_without_servers_nobody_waits_for_a_scheduler() -> None:
    assert not [key for key in worlds(job(2))["worker-0"] if key.startswith("DMLC_")]


def test_servers_are_no_ranks_of_torchrun() -> None:
    found = worlds(job(1, servers=1))
    for name in ("server-0", "scheduler-0"):
        assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & found[name].keys()


def test_paddle() -> None:
    found = worlds(job(3, servers=1, hosts=2))
    last = found["worker-2"]
    assert last["PADDLE_TRAINER_ENDPOINTS"] == (
        "{address:0}:{port:worker-0},{address:0}:{port:worker-1},{address:1}:{port:worker-2}"
    )
    assert last["PADDLE_CURRENT_ENDPOINT"] == "{address:1}:{port:worker-2}"
    assert (last["PADDLE_TRAINER_ID"], last["PADDLE_TRAINERS_NUM"], last["TRAINING_ROLE"]) == ("2", "3", "TRAINER")
    assert last["PADDLE_PSERVERS_IP_PORT_LIST"] == "{address:0}:{port:server-0}"
    assert found["server-0"]["TRAINING_ROLE"] == "PSERVER"
    assert found["server-0"]["PADDLE_PORT"] == "{port:server-0}"


@given(st.integers(1, 9), st.integers(0, 4), st.integers(1, 4))
def test_every_placeholder_is_a_port_or_an_address_of_the_job(workers: int, servers: int, hosts: int) -> None:
    asked = job(workers, servers, hosts)
    slots = place(asked)
    named = dict(ports(slots))
    assert len(named) == len(ports(slots))
    for slot in slots:
        for value in foreign(slot, slots, asked).values():
            assert set(re.findall(r"\{port:([^}]+)\}", value)) <= named.keys()
            assert all(int(node) < slot.num_nodes for node in re.findall(r"\{address:([^}]+)\}", value))
            assert not set("{}") & set(re.sub(r"\{(generation|(port|address):[a-z0-9-]+)\}", "", value))


@given(st.integers(1, 9), st.integers(1, 4))
def test_shoal_itself_reads_both_worlds_alike(workers: int, hosts: int) -> None:
    asked = job(workers, 0, hosts)
    slots = place(asked)
    for slot in slots:
        env = {
            key: value.replace("{port:", "1{").replace("}", "").replace("{", "").replace("address:", "10.0.0.")
            for key, value in foreign(slot, slots, asked).items()
        }
        torch = World.from_env({key: value for key, value in env.items() if not key.startswith("PADDLE_")})
        paddle = World.from_env({key: value for key, value in env.items() if key.startswith("PADDLE_")})
        assert torch is not None and paddle is not None
        assert (torch.launcher, paddle.launcher) == ("torchrun", "paddle")
        for world in (torch, paddle):
            assert (world.rank, world.num_ranks) == (slot.rank, workers)
            assert (world.rank_of_node, world.ranks_per_node) == (slot.rank_of_node, slot.ranks_per_node)
        assert (torch.node, torch.num_nodes) == (slot.node, slot.num_nodes)


def test_a_worlds_variables_are_not_handed_to_the_next_world() -> None:
    """What a process inherits must not place it in the world of the job that its launcher is part of."""
    for world in worlds(job(2, servers=1)).values():
        left = inherited(world)
        assert World.from_env(left) is None
        assert not [key for key in left if key.startswith(("DMLC_", "PADDLE_", "TORCHELASTIC_"))]
