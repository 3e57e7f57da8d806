"""What goes wrong between hosts is told in one line that names the host and what would be right; nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Hosts
from command import CPU, argv, launch, shoal

from lag import Lag

DONE = ("-n", "2", "--", "true")


def lines(result: subprocess.CompletedProcess[str], code: int = 1) -> list[str]:
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    assert "Traceback" not in result.stderr, result.stderr
    return [line.removeprefix("shoal: ") for line in result.stderr.splitlines() if line.strip()]


# Hosts


def test_an_unknown_host(hosts: Hosts, tmp_path: Path, lag: Lag) -> None:
    began = lag.begin()
    (line,) = lines(launch(hosts, tmp_path, *DONE, on="host1,nowhere"))
    assert line.startswith("nowhere: no host of that name; correct it in -H or the hostfile")
    assert time.monotonic() - began < lag.allows(30)


def test_a_host_that_is_off(hosts: Hosts, tmp_path: Path, lag: Lag) -> None:
    hosts.off("host2")
    began = lag.begin()
    (line,) = lines(launch(hosts, tmp_path, *DONE))
    assert line.startswith("host2: ")
    assert "refused" in line or "does not answer" in line or "sshd" in line or "no route" in line
    assert time.monotonic() - began < lag.allows(30)


def test_a_host_without_a_cable(hosts: Hosts, tmp_path: Path) -> None:
    hosts.unplug("host2")
    (line,) = lines(launch(hosts, tmp_path, "--ssh-option", "ConnectTimeout=2", *DONE))
    assert line.startswith("host2: ")
    assert "does not answer" in line or "no route" in line


def test_a_port_where_nobody_listens(hosts: Hosts, tmp_path: Path) -> None:
    (line,) = lines(launch(hosts, tmp_path, *DONE, on="host1,host2:2222"))
    assert line.startswith("host2:2222: nothing listens at its ssh port; start sshd there, or name the port")


def test_a_wrong_key(hosts: Hosts, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    config = tmp_path / "config"
    config.write_text(hosts.ssh_config.read_text().replace(f"{hosts.key}\n", f"{tmp_path}/other\n"))
    told = lines(launch(hosts, tmp_path, *DONE, config=config))
    assert sorted(told) == [f"host{k}: refuses the login; give it your key: ssh-copy-id host{k}" for k in (1, 2)]


def test_a_changed_host_key(hosts: Hosts, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    kind, key = (tmp_path / "other.pub").read_text().split()[:2]
    known = hosts.known_hosts.read_text().splitlines()
    (tmp_path / "known").write_text(f"{known[0]}\nhost2,{hosts.address('host2')} {kind} {key}\n")
    config = tmp_path / "config"
    config.write_text(hosts.ssh_config.read_text().replace(str(hosts.known_hosts), str(tmp_path / "known")))
    (line,) = lines(launch(hosts, tmp_path, *DONE, config=config))
    assert line.startswith("host2: its host key has changed since it was first seen; if that is meant to be: ")


def test_no_interpreter_there(hosts: Hosts, tmp_path: Path) -> None:
    told = lines(launch(hosts, tmp_path, "--python", "/opt/none/python3", *DONE))
    assert len(told) == 2
    for line in told:
        assert "no interpreter /opt/none/python3 there; install it there, or name another with --python" in line


# Numbers


def test_a_bad_line_of_a_hostfile(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# ours\nhost1 slots=2\nhost2 slots=many\n")
    (line,) = lines(shoal(hosts, "launch", "--hostfile", tmp_path / "hosts", *DONE), code=2)
    assert f"{tmp_path}/hosts:3: " in line
    assert "many" in line


def test_more_workers_than_slots(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("host1 slots=1\nhost2 slots=2\n")
    told = lines(shoal(hosts, "launch", "--hostfile", tmp_path / "hosts", "-n", "4", "--", "true"), code=2)
    assert "4 workers" in told[0] and "3" in told[0]


# Folders and programs


@pytest.fixture
def read_only(hosts: Hosts, tmp_path: Path) -> Iterator[Path]:
    """A folder that host2 may not write to, and that is not the head's."""
    folder = tmp_path / "logs"
    folder.mkdir()
    hosts.exec("host2", ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)])
    yield folder
    hosts.exec("host2", ["umount", "-l", str(folder)])


def test_a_log_folder_that_a_host_may_not_write_to(hosts: Hosts, read_only: Path) -> None:
    """Where it does not see the launcher's folder it needs none: its lines come to the launcher."""
    words = ("launch", "-H", "host1,host2", "--ssh-config", hosts.ssh_config, "--log-dir", read_only / "run")
    result = shoal(hosts, *words, "-n", "2", "--", "sh", "-c", "echo here is $(hostname)")
    if result.returncode:
        (line,) = lines(result)
        assert line.startswith("host2: ") and "Read-only file system" in line
    else:
        assert "here is host2" in (read_only / "run" / "logs" / "worker-1.log").read_text()


def test_a_command_that_is_not_there(hosts: Hosts, tmp_path: Path) -> None:
    told = lines(launch(hosts, tmp_path, "-n", "2", "--", "no-such-program", "--fast"))
    assert any("cannot start 'no-such-program': No such file or directory" in line for line in told)
    assert any(line.startswith(("worker 0 on host1", "worker 1 on host2")) for line in told)


# Manners of ending


def test_a_worker_that_ends_well_early_does_not_end_the_others(hosts: Hosts, tmp_path: Path) -> None:
    script = "sleep 0.7; [ $RANK = 0 ] && echo late || true"
    result = launch(hosts, tmp_path, "-n", "2", "--", "sh", "-c", f"[ $RANK = 1 ] || {{ {script}; }}")
    assert lines(result, 0)[-1:] in ([], ["late"])
    assert (tmp_path / "run" / "logs" / "worker-0.log").read_text() == "late\n"


STUBBORN = """
import os, pathlib, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
pathlib.Path(os.environ["RANK"]).touch()
time.sleep(600)
"""


def test_a_worker_that_ignores_term(hosts: Hosts, tmp_path: Path, lag: Lag) -> None:
    words = ("launch", "-H", "host1,host2", "--ssh-config", hosts.ssh_config, "--log-dir", tmp_path / "run")
    command = argv(hosts, *words, "-n", "2", "--", sys.executable, "-c", STUBBORN)
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env={**os.environ, **CPU})
    try:
        limit = time.monotonic() + 30
        while not ((tmp_path / "0").exists() and (tmp_path / "1").exists()):
            assert time.monotonic() < limit
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        time.sleep(1.0)
        assert process.poll() is None, "the first asks, and they were asked"
        process.send_signal(signal.SIGINT)
        began = lag.begin()
        _, said = process.communicate(timeout=20)
        assert time.monotonic() - began < lag.allows(5)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "killed by the agent: worker 0, worker 1" in said
    for name in hosts.names:
        assert not [pid for pid in hosts.pids(name) if b"pathlib" in Path(f"/proc/{pid}/cmdline").read_bytes()]


# Data, and the way between workers


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A recipe with images in a folder."""
    from small_images import rec_pair

    folder = rec_pair(tmp_path / "images")
    recipe = tmp_path / "pictures.yaml"
    recipe.write_text(
        f"data: {{name: recordio, path: {folder}}}\n"
        "model: cifar-resnet8\nbatch: 10\nshards: 2\nlength: 1ep\noptim: {name: sgd, lr: 0.1}\n"
    )
    return recipe


@pytest.mark.slow
def test_no_shared_data(hosts: Hosts, tmp_path: Path, pictures: Path) -> None:
    hosts.exec("host2", ["mount", "-t", "tmpfs", "tmpfs", str(tmp_path / "images")])
    try:
        words = ("train", pictures, "-n", "2", "-H", "host1,host2", "--ssh-config", hosts.ssh_config)
        result = shoal(hosts, *words, "--run", tmp_path / "run")
    finally:
        hosts.exec("host2", ["umount", "-l", str(tmp_path / "images")])
    assert result.returncode in (1, 2), result.stderr
    told = "\n".join(lines(result, result.returncode)[-4:])
    assert "worker 1 on host2 failed first" in told or told.startswith("host2: "), result.stderr
    assert str(tmp_path / "images") in told


@pytest.mark.slow
def test_the_port_of_the_first_worker_cannot_be_reached(hosts: Hosts, tmp_path: Path, lag: Lag) -> None:
    """For one that gives no answer at all see tests/launch/test_meeting.py."""
    to = ["unreachable", hosts.address("host1")]
    hosts.exec("host2", ["ip", "route", "add", *to])
    began = lag.begin()
    try:
        words = ("train", "digits", "-n", "2", "-H", "host1,host2", "--ssh-config", hosts.ssh_config)
        result = shoal(hosts, *words, "--run", tmp_path / "run")
    finally:
        hosts.exec("host2", ["ip", "route", "del", *to])
    assert time.monotonic() - began < lag.allows(30)
    told = "\n".join(lines(result))
    assert f"worker 1 on host2 cannot reach worker 0 at {hosts.address('host1')}:" in told, told
    assert "No route to host" in told


@pytest.mark.slow
def test_a_wrong_interface(hosts: Hosts, tmp_path: Path, lag: Lag) -> None:
    for index, name in enumerate(hosts.names):
        hosts.exec(name, ["ip", "link", "add", "island", "type", "veth", "peer", "name", "sea"])
        hosts.exec(name, ["ip", "addr", "add", f"10.250.{index}.1/24", "dev", "island"])
        for end in ("island", "sea"):
            hosts.exec(name, ["ip", "link", "set", end, "up"])
    try:
        words = ("train", "digits", "-n", "2", "-H", "host1,host2", "--ssh-config", hosts.ssh_config)
        began = lag.begin()
        result = shoal(hosts, *words, "--env", "GLOO_SOCKET_IFNAME=island", "--run", tmp_path / "run")
        seconds = time.monotonic() - began
    finally:
        for name in hosts.names:
            hosts.exec(name, ["ip", "link", "del", "island"])
    told = "\n".join(lines(result))
    assert "rank 0 on host1 cannot reach rank 1 on host2 at 10.250.1.1" in told or (
        "rank 1 on host2 cannot reach rank 0 on host1 at 10.250.0.1" in told
    ), told
    assert "from interface island" in told
    assert seconds < lag.allows(30)
