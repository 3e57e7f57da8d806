"""`shoal launch` over ssh hosts: worlds reach across them, and hosts that differ are refused before anything runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Hosts

import shoal as package

TORCH = """
import os, socket
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
world = {name: os.environ[name] for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")}
print(f"rank {dist.get_rank()} on {socket.gethostname()}: sum {total.item():.0f} {world}", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


MEETING = """
import os, socket
rank, size = int(os.environ["RANK"]), os.environ["WORLD_SIZE"]
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    listening = socket.create_server(place)
    peer, _ = listening.accept()
    peer.sendall(size.encode())
else:
    while True:
        try:
            peer = socket.create_connection(place)
            break
        except ConnectionRefusedError:
            pass
    print(f"rank {rank} on {socket.gethostname()} of {size} met {peer.recv(9).decode()}", flush=True)
"""


def launch(
    hosts: Hosts, folder: Path, *words: str, on: str = "host1,host2", **env: str
) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "shoal", "launch", "-H", on, "--ssh-config", str(hosts.ssh_config)]
    argv += ["--log-dir", str(folder / "run"), *words]
    return subprocess.run(argv, capture_output=True, text=True, cwd=folder, env={**os.environ, **env})


def log(folder: Path, name: str) -> str:
    return (folder / "run" / "logs" / f"{name}.log").read_text()


def test_a_plain_torch_distributed_script(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TORCH)
    done = launch(hosts, tmp_path, "-n", "3", "--", sys.executable, "script.py", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert f"workers meet at {hosts.address('host1')}:" in done.stderr
    assert ": eth0 of host1, by which it was reached\n" in done.stderr
    told = [log(tmp_path, f"worker-{rank}") for rank in range(3)]
    for rank, (host, local, size) in enumerate([("host1", 0, 2), ("host1", 1, 2), ("host2", 0, 1)]):
        world = {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(size), "GROUP_RANK": str(int(host[-1]) - 1)}
        assert f"rank {rank} on {host}: sum 6 {world}\n" in told[rank]


def test_roles_as_mxnets_find_each_other(hosts: Hosts, tmp_path: Path) -> None:
    """A small script acts as MXNet's scheduler, servers and workers; for MXNet itself see tests/e2e."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
    from test_launch import ROLES

    (tmp_path / "script.py").write_text(ROLES)
    done = launch(hosts, tmp_path, "-n", "2", "-s", "2", "--", sys.executable, "script.py")
    assert done.returncode == 0, done.stderr
    assert "worker 1 pulled [11, 11]" in log(tmp_path, "worker-1")
    assert "all done" in log(tmp_path, "scheduler-0")


@pytest.mark.skipif("SHOAL_TEST_MXNET" not in os.environ, reason="SHOAL_TEST_MXNET names no interpreter with MXNet")
def test_mxnet_itself(hosts: Hosts, tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
    from test_launch import MXNET

    (tmp_path / "script.py").write_text(MXNET)
    done = launch(hosts, tmp_path, "-n", "2", "-s", "2", "--", os.environ["SHOAL_TEST_MXNET"], "script.py")
    assert done.returncode == 0, done.stderr
    assert sorted(log(tmp_path, f"worker-{rank}").splitlines()[-1] for rank in range(2)) == [
        "rank 0 of 2 pulled 18",
        "rank 1 of 2 pulled 18",
    ]


def test_by_hand_on_each_host(hosts: Hosts, tmp_path: Path) -> None:
    """Node 0 listens on its address in the hosts' network; the other reaches it there, and no ssh is needed."""
    (tmp_path / "script.py").write_text(MEETING)
    (tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef")
    (tmp_path / "secret").chmod(0o600)
    argv = [
        sys.executable,
        "-m",
        "shoal",
        "launch",
        "--num-nodes",
        "2",
        "--rendezvous",
        f"{hosts.address('host1')}:29500",
    ]
    argv += ["--secret-file", str(tmp_path / "secret"), "--log-dir", str(tmp_path / "run"), "--node-rank"]
    command = ["--", sys.executable, str(tmp_path / "script.py")]
    nodes = [
        subprocess.Popen(hosts.argv(name, [*argv, str(node), *command]), stderr=subprocess.PIPE, text=True)
        for node, name in ((1, "host2"), (0, "host1"))
    ]
    told = [node.communicate(timeout=400)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], told
    assert "rank 1 on host2 of 2 met 2\n" in log(tmp_path, "worker-1")
    assert f"workers meet at {hosts.address('host1')}:" in told[1] and ": eth0 of node-0, on the way" in told[1]


def test_the_first_to_fail_is_named_with_its_host(hosts: Hosts, tmp_path: Path) -> None:
    code = "import os, sys, time; sys.exit('no such moon') if os.environ['RANK'] == '1' else time.sleep(60)"
    done = launch(hosts, tmp_path, "-n", "2", "--", sys.executable, "-c", code)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-3:] == [
        "worker 1 on host2 failed first: exit 1",
        "no such moon",
        f"log: {tmp_path}/run/logs/worker-1.log",
    ]


@pytest.fixture
def other_code(tmp_path: Path) -> Path:
    """An interpreter that finds a Shoal with one line more."""
    shutil.copytree(Path(package.__file__).parent, tmp_path / "src" / "shoal")
    with open(tmp_path / "src" / "shoal" / "__init__.py", "a") as file:
        file.write("\n# one line more\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/src exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_other_code_on_a_host_is_refused_before_the_start(hosts: Hosts, tmp_path: Path, other_code: Path) -> None:
    done = launch(hosts, tmp_path, "-n", "2", "--python", str(other_code), "--", "touch", str(tmp_path / "touched"))
    assert done.returncode == 1 and not (tmp_path / "touched").exists()
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) == 2, done.stderr
    for host, line in zip(("host1", "host2"), sorted(line.removeprefix("shoal: ") for line in lines), strict=True):
        assert line.startswith(f"{host}: code: shoal {package.__version__}, code ")
        assert f"; rsync -a --delete {Path(package.__file__).parent}/ {host}:" in line


def test_data_that_a_host_lacks_are_told_before_the_start(hosts: Hosts, tmp_path: Path) -> None:
    """host2 has another file system where the data lie."""
    data = tmp_path / "data" / "train" / "cat"
    data.mkdir(parents=True)
    for number in range(8):
        (data / f"{number}.png").write_bytes(b"no image, but looked at only once the training has begun")
    hosts.exec("host2", ["mount", "-t", "tmpfs", "none", str(tmp_path / "data")])
    try:
        argv = [sys.executable, "-m", "shoal", "train", "imagenet-resnet50", f"data.path={tmp_path}/data"]
        argv += ["-H", "host1,host2", "--ssh-config", str(hosts.ssh_config), "--run", str(tmp_path / "run")]
        done = subprocess.run(argv, capture_output=True, text=True)
    finally:
        hosts.exec("host2", ["umount", str(tmp_path / "data")])
    assert done.returncode == 1
    assert (
        f"host2: data: {tmp_path}/data: nothing readable there; rsync -a {tmp_path}/data host2:{tmp_path}/\n"
    ) in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "run" / "logs" / "worker-0.log").exists()


def test_hosts_that_cannot_be_used_are_all_named(hosts: Hosts, tmp_path: Path) -> None:
    done = launch(hosts, tmp_path, "-n", "2", "--python", "/usr/none/python", "--", "true")
    assert done.returncode == 1
    for host in ("host1", "host2"):
        assert f"{host}: no interpreter /usr/none/python there; install it there, or name another" in done.stderr
