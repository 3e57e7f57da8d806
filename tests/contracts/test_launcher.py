"""What every launcher promises: it says whether it can be used, and plans every process, purely, before it acts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.base.world import World
from shoal.launch.hosts import Host
from shoal.launch.job import Job, Plan, Role
from shoal.launch.launcher import Launcher
from shoal.recipe.part import kinds

EXAMPLES: dict[str, dict[str, Any]] = {
    "hands": {"rendezvous": "127.0.0.1:5", "num_nodes": 2},
    "kubernetes": {"image": "registry/shoal:1"},
    "sge": {"pe": "mpi"},
    "yarn": {"url": "http://rm:8088", "python": "/usr/bin/python3"},
}
"""Options that a launcher needs beside its defaults."""
HOSTS = {"ssh": (Host("node1", slots=2), Host("node2", user="u", port=2222))}
"""Where a launcher starts; none: it decides itself."""


@pytest.fixture(params=sorted(kinds("launchers")))
def launcher(request: pytest.FixtureRequest) -> Launcher:
    return kinds("launchers")[request.param](**EXAMPLES.get(request.param, {}))  # type: ignore[return-value]


def job(launcher: Launcher, run: Path, workers: int = 3, servers: int = 1, **more: Any) -> Job:
    roles = [Role("worker", workers, ("python", "train.py", "a b"), {"OPTION": "1"})]
    if servers:
        roles += [Role("server", servers, ("python", "serve.py")), Role("scheduler", 1, ("python", "serve.py"))]
    hosts = HOSTS.get(launcher.name, ())
    words = ("launch", "--log-dir", "/run", "--", "python", "train.py", "a b")
    return Job(tuple(roles), run, hosts=hosts, words=words, id="0123456789abcdef", env={"TOKEN": "hunter2"}, **more)


def plan(launcher: Launcher, run: Path, **more: Any) -> Plan:
    return launcher.plan(job(launcher, run, **more))


def test_it_says_whether_it_can_be_used(launcher: Launcher) -> None:
    reason = launcher.fits()
    assert reason is None or (reason and "\n" not in reason)


def test_a_plan_is_pure(launcher: Launcher, tmp_path: Path) -> None:
    assert plan(launcher, tmp_path / "run") == plan(launcher, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_every_process_once_with_its_world(launcher: Launcher) -> None:
    planned = plan(launcher, Path("run"))
    names = ["worker 0", "worker 1", "worker 2", "server 0", "scheduler 0"]
    assert [command.name for command in planned.commands] == names
    assert len({command.log for command in planned.commands}) == len(names)
    for command in planned.commands:
        world = World.from_env(command.env)
        assert world is not None
        assert (world.role, world.rank, world.rendezvous) == (command.role, command.rank, "{rendezvous}")
        assert world.num_ranks == {"worker": 3, "server": 1, "scheduler": 1}[command.role]
        assert (world.node, world.num_nodes) == (command.node, len(planned.hosts))
        assert planned.hosts[command.node].text == command.host
    assert [command.argv[-1] for command in planned.commands] == ["a b"] * 3 + ["serve.py"] * 2
    assert [command.leads for command in planned.commands] == [True, False, False, False, False]


@pytest.mark.parametrize("worlds", ["shoal", "all"])
def test_the_worlds_of_others_are_there_when_asked_for(launcher: Launcher, worlds: str) -> None:
    planned = plan(launcher, Path("run"), worlds=worlds)
    first = planned.commands[0].env
    assert ("RANK" in first, "DMLC_ROLE" in first, "PADDLE_TRAINER_ID" in first) == (worlds == "all",) * 3
    servers = {(command.name.replace(" ", "-"), command.node) for command in planned.commands if command.listens}
    assert set(planned.ports) == servers if worlds == "shoal" else set(planned.ports) > servers


def test_the_text_names_all_and_no_value_of_the_environment(launcher: Launcher) -> None:
    planned = plan(launcher, Path("run"), worlds="all")
    text = planned.text()
    for command in planned.commands:
        assert f"{command.host} {command.role}-{command.rank}\n" in text and f"log: {command.log}" in text
    assert "python train.py 'a b'" in text and "hunter2" not in text and f"launcher: {launcher.name}\n" in text


def test_its_options_survive_being_written_down(launcher: Launcher) -> None:
    assert msgspec.convert(msgspec.to_builtins(launcher), type(launcher)) == launcher
