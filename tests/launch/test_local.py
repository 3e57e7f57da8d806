"""The local launcher: a plan that can be read, and the same thing started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.base.errors import UsageError
from shoal.base.world import World
from shoal.launch.hosts import Host
from shoal.launch.job import Job, Outcome, Plan, Role
from shoal.launch.launchers.local import Local
from shoal.recipe.part import kind

SHOW = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('SHOAL_')}))"


def plan(run: Path, *, workers: int = 2, servers: int = 0, **job) -> Plan:
    roles = (
        Role("worker", workers, (sys.executable, "-c", SHOW), {"OPTION": "a b"}),
        Role("server", servers, (sys.executable, "-c", "pass")),
    )
    return Local().plan(Job(roles, run, **job))


def test_local_is_a_part() -> None:
    assert kind("launchers", "local") is Local
    assert Local().fits() is None


def test_plan_gives_every_process_its_world() -> None:
    planned = plan(Path("runs/x"), workers=2, servers=1)
    assert [command.name for command in planned.commands] == ["worker 0", "worker 1", "server 0"]
    worlds = [World.from_env(command.env) for command in planned.commands]
    assert worlds[1] == World(1, 2, 1, 2, "{rendezvous}", "shoal")
    assert worlds[2] == World(0, 1, 0, 1, "{rendezvous}", "shoal", role="server")
    assert [str(command.log) for command in planned.commands] == [
        "runs/x/logs/worker-0.log",
        "runs/x/logs/worker-1.log",
        "runs/x/logs/server-0.log",
    ]


def test_plan_is_pure(tmp_path: Path) -> None:
    assert plan(tmp_path / "run") == plan(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_text_of_a_plan() -> None:
    job = Job((Role("worker", 1, ("python", "-c", "print(1)"), {"OPTION": "a b"}),), Path("runs/x"), range(2000, 2010))
    assert Local().plan(job).text() == (
        "launcher: local\n"
        "run: runs/x\n"
        "processes: 1\n"
        "ports: 2000-2009\n"
        "\n"
        "localhost worker-0\n"
        "    OPTION='a b'\n"
        "    SHOAL_ROLE=worker\n"
        "    SHOAL_RANK=0\n"
        "    SHOAL_NUM_RANKS=1\n"
        "    SHOAL_RANK_OF_NODE=0\n"
        "    SHOAL_RANKS_PER_NODE=1\n"
        "    SHOAL_NODE=0\n"
        "    SHOAL_NUM_NODES=1\n"
        "    SHOAL_RENDEZVOUS='{rendezvous}'\n"
        "    python -c 'print(1)'\n"
        "    log: runs/x/logs/worker-0.log\n"
    )


def test_other_hosts_are_refused() -> None:
    assert plan(Path("x"), hosts=(Host("localhost"), Host("127.0.0.1"))).commands
    with pytest.raises(UsageError, match="this host only, not on node7"):
        plan(Path("x"), hosts=(Host("localhost"), Host("node7")))


def test_started_processes_find_their_world(tmp_path: Path) -> None:
    planned = plan(tmp_path, workers=2, servers=1)
    assert Local().start(planned).wait(30) == Outcome(0)
    worlds = [World.from_env(json.loads(command.log.read_text())) for command in planned.commands[:2]]
    assert [world.rank for world in worlds if world] == [0, 1]
    meeting = {world.rendezvous for world in worlds if world}
    assert len(meeting) == 1 and meeting.pop().startswith("127.0.0.1:")


def test_launching_needs_no_torch() -> None:
    code = "import sys; import shoal.launch.launchers.local; sys.exit('torch' in sys.modules)"
    source = str(Path(shoal.__file__).parents[1])
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}).returncode == 0
