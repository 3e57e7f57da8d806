"""doctor, ps and stop over real ssh hosts: what people ask, and what they are told when something is wrong there."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Hosts

DEAF = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"
)
WILLING = "import signal; print('up', flush=True); signal.pause()"


def shoal(hosts: Hosts, *words: str, on: str = "host1,host2") -> subprocess.CompletedProcess[str]:
    verb, *rest = words
    argv = [sys.executable, "-m", "shoal", verb, "-H", on, "--ssh-config", str(hosts.ssh_config), *rest]
    return subprocess.run(argv, capture_output=True, text=True)


@pytest.fixture
def job(hosts: Hosts) -> Iterator[str]:
    name = secrets.token_hex(8)
    yield name
    for pid in hosts.survivors(name):
        os.kill(pid, signal.SIGKILL)


def started(hosts: Hosts, host: str, job: str, run: Path, code: str = WILLING) -> subprocess.Popen[str]:
    """A worker on a host, whose launcher is gone."""
    env = ["env", f"SHOAL_JOB={job}", f"SHOAL_RUN={run}", "SHOAL_ROLE=worker", f"SHOAL_RANK={host[-1]}"]
    argv = hosts.argv(host, [*env, "setsid", "--wait", sys.executable, "-c", code])
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "up\n"
    return process


def test_the_doctor_finds_hosts_well(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 1000)
    done = shoal(hosts, "doctor", "--data", str(tmp_path / "data"), "--run", str(tmp_path), "--ports", "21000-21050")
    assert done.returncode == 0, done.stdout + done.stderr
    for line in (
        "host1: connections: reaches host2",
        "host2: connections: reaches host1",
        "(eth0), for ssh from ",
        "host2: data: ",
        "host2: ports: 51 free",
        "host2: clock: agrees",
    ):
        assert line in done.stdout
    assert done.stdout.splitlines()[-1] == "0 faults, 0 notes, 26 ok"


def test_the_doctor_finds_what_is_wrong(hosts: Hosts, tmp_path: Path) -> None:
    done = shoal(hosts, "doctor", "--python", "/usr/none/python")
    assert done.returncode == 1
    assert (
        done.stdout.count("no interpreter /usr/none/python there; install it there, or name another with --python") == 2
    )
    hosts.unplug("host2")
    done = shoal(hosts, "doctor", "--ssh-option", "ConnectTimeout=2")
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FAULT")]
    assert line.startswith("FAULT  host2: reached: ") and ("does not answer" in line or "no route" in line)


def test_the_doctor_sees_hosts_that_do_not_reach_each_other(hosts: Hosts) -> None:
    """Both answer ssh; between them something is in the way."""
    route = ["ip", "route", "add", "prohibit", hosts.address("host2")]
    hosts.exec("host1", route)
    try:
        done = shoal(hosts, "doctor")
    finally:
        hosts.exec("host1", ["ip", "route", "del", *route[3:]])
    assert done.returncode == 1
    faults = [line for line in done.stdout.splitlines() if line.startswith("FAULT")]
    assert len(faults) == 2
    place = rf"{re.escape(hosts.address('host2'))}:\d+"
    assert re.match(
        rf"FAULT  host1: connections: does not reach host2 at {place} \(.+\); open the firewalls", faults[0]
    )
    assert re.match(
        r"FAULT  host2: connections: does not reach host1 at .*\(no answer\); open the firewalls", faults[1]
    )


def test_ps_and_stop_where_the_launcher_is_gone(hosts: Hosts, job: str, tmp_path: Path) -> None:
    willing, deaf = started(hosts, "host1", job, tmp_path), started(hosts, "host2", job, tmp_path, DEAF)
    bystander = secrets.token_hex(8)
    started(hosts, "host2", bystander, tmp_path / "other", DEAF)
    try:
        rows = [line.split() for line in shoal(hosts, "ps").stdout.splitlines() if job in line]
        assert [(row[1], row[2], row[3], row[-1]) for row in rows] == [
            ("host1", "worker", "1", str(tmp_path)),
            ("host2", "worker", "2", str(tmp_path)),
        ]
        done = shoal(hosts, "stop", str(tmp_path), "--grace", "0.5")
        assert done.stdout.splitlines() == [
            f"host1: job {job} ({tmp_path}): 1 ended",
            f"host2: job {job} ({tmp_path}): 0 ended, 1 killed",
        ]
        assert done.returncode == 0 and done.stderr == ""
        assert willing.wait(5) != 0 and deaf.wait(5) != 0
        assert job not in shoal(hosts, "ps").stdout
        assert hosts.survivors(job) == [] and len(hosts.survivors(bystander)) > 0
    finally:
        for pid in hosts.survivors(bystander):
            os.kill(pid, signal.SIGKILL)


def test_stop_while_the_launcher_is_alive(hosts: Hosts, tmp_path: Path) -> None:
    """It is asked to stop its job, which then ends in good order on all hosts."""
    code = "import time; print('up', flush=True); time.sleep(100)"
    argv = [sys.executable, "-m", "shoal", "launch", "-H", "host1,host2", "--ssh-config", str(hosts.ssh_config)]
    argv += ["--log-dir", str(tmp_path / "run"), "--", sys.executable, "-c", code]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stderr
        while "up" not in (line := launcher.stderr.readline()):
            assert line
        rows = [line.split() for line in shoal(hosts, "ps").stdout.splitlines() if str(tmp_path) in line]
        assert [(row[1], row[2]) for row in rows if row[2] == "worker"] == [("host1", "worker"), ("host2", "worker")]
        done = shoal(hosts, "stop", str(tmp_path / "run"))
        assert done.returncode == 0 and done.stderr == ""
        assert launcher.wait(20) == 75
    assert str(tmp_path) not in shoal(hosts, "ps").stdout


def test_a_host_that_is_cut_off_is_told_and_the_others_are_stopped(hosts: Hosts, job: str, tmp_path: Path) -> None:
    process = started(hosts, "host1", job, tmp_path)
    hosts.unplug("host2")
    done = shoal(hosts, "stop", job, "--grace", "0.5", "--ssh-option", "ConnectTimeout=2")
    assert done.returncode == 1 and done.stdout == f"host1: job {job} ({tmp_path}): 1 ended\n"
    assert done.stderr.startswith("shoal: host2: ") and done.stderr.count("\n") == 1
    assert process.wait(5) != 0


def test_a_login_shell_that_talks(hosts: Hosts, job: str, tmp_path: Path) -> None:
    """What its start-up files print is no answer, and does not hide one."""
    process = started(hosts, "host1", job, tmp_path)

    (tmp_path / "python").write_text(f'#!/bin/sh\necho "Welcome to the moon"\necho\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    done = shoal(hosts, "ps", "--python", str(tmp_path / "python"))
    assert done.returncode == 0 and job in done.stdout and "moon" not in done.stdout
    done = shoal(hosts, "doctor", "--python", str(tmp_path / "python"))
    assert done.returncode == 0, done.stdout
    done = shoal(hosts, "stop", job, "--python", str(tmp_path / "python"))
    assert done.stdout == f"host1: job {job} ({tmp_path}): 1 ended\n"
    assert process.wait(5) != 0
