"""What slurm would start: in an allocation, and from outside; no Slurm is needed to know it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.base.errors import UsageError
from shoal.launch.hosts import Host
from shoal.launch.job import Job, Role
from shoal.launch.launchers.slurm import Slurm

WORDS = ("train", "--run", "/r/my run", "it's.yaml", "-n", "4")


def job(workers: int = 4, **more: Any) -> Job:
    return Job((Role("worker", workers, ("p",)),), Path("/r/my run"), words=WORDS, id="0123456789abcdef", **more)


@pytest.fixture
def allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gpu[03-05]", "SLURM_TASKS_PER_NODE": "2(x2),1"}
    for key, value in {**given, "SLURM_JOB_CPUS_PER_NODE": "8(x3)"}.items():
        monkeypatch.setenv(key, value)


@pytest.mark.usefixtures("allocation")
def test_in_an_allocation_its_tasks_are_the_slots() -> None:
    plan = Slurm().plan(job())
    assert [command.host for command in plan.commands] == ["gpu03", "gpu03", "gpu04", "gpu04"]
    ((_, srun),) = plan.ways
    assert {"--nodes=2", "--ntasks=2", "--nodelist=gpu03,gpu04", "--kill-on-bad-exit=1"} <= set(srun)
    ((_, elastic),) = Slurm().plan(job(min_workers=2)).ways
    assert {"--kill-on-bad-exit=0", "--no-kill"} <= set(elastic)
    with pytest.raises(UsageError, match="6 workers for 5 slots"):
        Slurm().plan(job(6))
    with pytest.raises(UsageError, match=r"gpu09: not in this allocation \(gpu03, gpu04, gpu05\)"):
        Slurm().plan(job(hosts=(Host("gpu09"),)))


@pytest.mark.usefixtures("allocation")
def test_without_tasks_its_cpus_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1(x3)")
    assert [host.slots for host in Slurm().hosts()] == [8, 8, 8]


def test_from_outside_the_same_command_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    launcher = Slurm(nodes=2, partition="gpu", time="2:00:00", gpus_per_worker=1, args=("--exclusive",))
    plan = launcher.plan(job())
    ((place, script),) = plan.files
    assert script.splitlines()[-1].endswith("""-m shoal train --run '/r/my run' 'it'"'"'s.yaml' -n 4""")
    ((_, sbatch),) = plan.ways
    wanted = {"--nodes=2", "--ntasks-per-node=2", "--partition=gpu", "--time=2:00:00", "--gpus-per-task=1", "--requeue"}
    assert wanted <= set(sbatch) and sbatch[-2:] == ("--exclusive", place) and "--signal=B:USR1@120" in sbatch
    assert "--output=/r/my run/logs/slurm-%j.log" in sbatch
    with pytest.raises(UsageError, match="Slurm chooses the nodes"):
        Slurm().plan(job(hosts=(Host("gpu03"),)))
