"""`shoal train` over ssh hosts: fewer hosts after a loss, hosts that share no files, and a copy of what is trained."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
from cluster import Hosts
from command import argv, shoal
from outcome import what_came

from lag import Lag
from shoal.base.run import Run

SMALL = ("digits", "data.limit=400", "batch=40", "shards=4", "strategy.deterministic=true", "save_every=5st")


def saved(run: Run, step: int) -> bool:
    return any(found >= step for found in run.steps_saved())


def state(run: Run) -> bytes:
    return (run.checkpoint(run.steps_saved()[-1]) / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, _two_hosts: Hosts) -> Run:
    """The same training on this host alone."""
    run = Run(tmp_path_factory.mktemp("here") / "run")
    done = shoal(_two_hosts, "train", *SMALL, "length=6ep", "--run", run.folder)
    assert done.returncode == 0, done.stderr
    return run


@pytest.mark.slow
def test_four_workers_on_two_hosts_give_the_bits_of_this_host(hosts: Hosts, here: Run, tmp_path: Path) -> None:
    """The model, the optimizer's state and all figures; tests/e2e/test_exactness.py has any number of workers here."""
    words = ("train", *SMALL, "length=6ep", "-n", "4", "-H", "host1,host2", "--ssh-config", hosts.ssh_config)
    done = shoal(hosts, *words, "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert what_came(tmp_path / "run") == what_came(here.folder)


@pytest.mark.slow
def test_a_host_that_dies_is_done_without(hosts: Hosts, here: Run, tmp_path: Path, lag: Lag) -> None:
    run = Run(tmp_path / "run")
    words = ("train", *SMALL, "length=6ep", "-n", "1:2", "-H", "host1,host2", "--ssh-config", hosts.ssh_config)
    with (tmp_path / "err").open("w") as err:
        job = subprocess.Popen(argv(hosts, *words, "--silence", "3", "--run", run.folder), stderr=err)
    try:
        while not saved(run, 10):
            assert job.poll() is None, (tmp_path / "err").read_text()
            time.sleep(0.05)
        hosts.off("host2")
        began = lag.begin()
        while "Resumed" not in (tmp_path / "err").read_text():
            assert time.monotonic() - began < lag.allows(30) and job.poll() is None, (tmp_path / "err").read_text()
            time.sleep(0.05)
        assert job.wait(120) == 0, (tmp_path / "err").read_text()
    finally:
        job.kill()
    told = (tmp_path / "err").read_text()
    assert "restart 1 of 3: 1 worker on host1" in told
    assert re.search(
        r"worker 1 on host2 failed first: (host2 said nothing for 3 s|the connection to host2 broke)", told
    )
    assert state(run) == state(here)


@pytest.mark.slow
def test_parameter_servers_on_hosts(hosts: Hosts, here: Run, tmp_path: Path) -> None:
    """One on each; between hosts they have a secret and a certificate of their own."""
    run = Run(tmp_path / "run")
    words = ("strategy=ps:deterministic=true", "length=6ep", "-n", "2", "-s", "2", "-H", "host1,host2")
    done = shoal(
        hosts, "train", *SMALL[:-2], "save_every=5st", *words, "--ssh-config", hosts.ssh_config, "--run", run.folder
    )
    assert done.returncode == 0, done.stderr
    assert "host2 server-1" in run.plan.read_text()
    assert state(run) == state(here)


@pytest.mark.slow
def test_hosts_that_share_no_files(hosts: Hosts, here: Run, tmp_path: Path) -> None:
    """The recipe goes there; logs, figures and checkpoints come back; a resume takes them there again."""
    for name in hosts.names:
        hosts.exec(name, ["mount", "-t", "tmpfs", "tmpfs", str(tmp_path)])
    run = Run(tmp_path / "run")
    words = ("train", *SMALL, "-n", "2", "--ssh-config", hosts.ssh_config, "--run", run.folder)
    first = shoal(hosts, *words, "-H", "host1,host2", "length=6ep", cwd=tmp_path.parent)
    assert first.returncode == 0, first.stderr
    assert "Saved checkpoint" in run.log("worker", 0).read_text()
    assert run.log("worker", 1).exists()
    assert state(run) == state(here)
    more = ("length=7ep", "--allow", "length")
    again = shoal(hosts, *words, "-H", "host2,host1", *more, cwd=tmp_path.parent)
    assert again.returncode == 0, again.stderr
    assert re.search(r"Resumed +from step 60", again.stderr), again.stderr
    assert run.steps_saved()[-1] == 70


@pytest.mark.slow
def test_the_working_directory_is_copied(hosts: Hosts, tmp_path: Path) -> None:
    work, there = tmp_path / "work", tmp_path / "there"
    work.mkdir()
    (work / "script.py").write_text("import os; print(os.getcwd(), sorted(os.listdir('.')))")
    for name in hosts.names:
        hosts.exec(name, ["mount", "-t", "tmpfs", "tmpfs", str(work)])
    words = ("launch", "-n", "2", "-H", "host1,host2", "--ssh-config", hosts.ssh_config, "--log-dir", tmp_path / "run")
    done = shoal(hosts, *words, "--sync-dst-dir", there, "--", "python3", "script.py", cwd=work)
    assert done.returncode == 0, done.stderr
    assert Run(tmp_path / "run").log("worker", 1).read_text() == f"{there} ['script.py']\n"


def test_a_copy_that_cannot_be_made(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ("launch", "-n", "2", "-H", "host1,host2", "--ssh-config", hosts.ssh_config, "--log-dir", tmp_path / "run")
    done = shoal(hosts, *words, "--sync-dst-dir", tmp_path / "file" / "x", "--", "true", cwd=tmp_path)
    assert done.returncode == 1
    told = done.stderr.splitlines()
    assert [line.split(": ")[0] for line in told] == ["host1", "host2"], told
    assert all(f"--sync-dst-dir {tmp_path}/file/x: rsync" in line for line in told)
