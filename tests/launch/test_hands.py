"""Agents that people start themselves: whole programs over two "nodes", and whoever comes to the meeting by mistake."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.base.errors import ShoalError, UsageError
from shoal.launch.hands import digest, gather, parse_rendezvous
from shoal.launch.handshake import connect
from shoal.launch.seats import PURPOSE, Seat
from shoal.launch.tagged import tagged

SECRET = secrets.token_hex(16).encode()
OWN = Seat(0, 3, digest(["x"]))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


class Gathering:
    """Node 0 that waits, in a thread."""

    def __init__(self, wait_s: float = 20) -> None:
        self.place = ("127.0.0.1", free_port())
        self.said: list[str] = []
        self.seated: dict[int, socket.socket] | None = None
        self.error: BaseException | None = None
        self._waiting = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(wait_s,))
        self._thread.start()
        assert self._waiting.wait(10)

    def _show(self, line: str) -> None:
        self.said.append(line)
        self._waiting.set()

    def _run(self, wait_s: float) -> None:
        try:
            self.seated = gather(self.place, OWN, SECRET, self._show, wait_s=wait_s)
        except BaseException as error:
            self.error = error
            self._waiting.set()

    def join(self) -> None:
        self._thread.join(30)
        for connection in (self.seated or {}).values():
            connection.close()

    def come(self, said: bytes) -> socket.socket:
        connection = connect(self.place, SECRET, PURPOSE)
        connection.sendall(said)
        connection.settimeout(10)
        return connection


def seat(node: int, num_nodes: int = 3, command: str = OWN.command) -> bytes:
    return json.dumps({"node": node, "num_nodes": num_nodes, "command": command}).encode() + b"\n"


def answer(connection: socket.socket) -> dict[str, object]:
    with connection:
        return json.loads(connection.recv(4096))


def test_all_come_in_any_order() -> None:
    gathering = Gathering()
    second = gathering.come(seat(2))
    first = gathering.come(seat(1))
    assert answer(first) == answer(second) == {"ok": True}
    gathering.join()
    assert gathering.seated is not None and sorted(gathering.seated) == [1, 2]


def test_whoever_does_not_belong_is_told_why_and_the_others_still_meet() -> None:
    gathering = Gathering()
    first = gathering.come(seat(1))
    for said, why in (
        (seat(1), "--node-rank 1 has come already; every node has a number of its own"),
        (seat(3), "--node-rank 3: expected 1 to 2"),
        (seat(0), "--node-rank 0: expected 1 to 2"),
        (seat(2, num_nodes=4), "--num-nodes is 3 here and 4 on node 2"),
        (seat(2, command=digest(["y"])), "node 2 was started with another command; every node needs the same"),
    ):
        deadline = time.monotonic() + 10
        while not any("node 1 has come" in line for line in gathering.said) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert answer(gathering.come(said)) == {"refused": why}
    for rubbish in (b"\n", b"[]\n", b'{"node": 2}\n', b"x" * 5000, b'{"node": "two", "num_nodes": 3, "command": ""}\n'):
        with gathering.come(rubbish) as connection:
            try:
                assert connection.recv(99) == b""
            except ConnectionResetError:
                pass
    assert answer(gathering.come(seat(2))) == {"ok": True} == answer(first)
    gathering.join()


def test_one_that_went_away_may_come_again() -> None:
    gathering = Gathering()
    gathering.come(seat(1)).close()
    deadline = time.monotonic() + 10
    while not any("went away" in line for line in gathering.said) and time.monotonic() < deadline:
        time.sleep(0.01)
    first, second = gathering.come(seat(1)), gathering.come(seat(2))
    assert answer(first) == answer(second) == {"ok": True}
    gathering.join()
    assert [line.partition(" from")[0] for line in gathering.said[1:]] == [
        "node 1 has come",
        "node 1 went away again",
        "node 1 has come",
        "node 2 has come",
    ]


def test_the_missing_are_named() -> None:
    gathering = Gathering(wait_s=0.5)
    connection = gathering.come(seat(2))
    gathering.join()
    connection.close()
    assert isinstance(gathering.error, ShoalError)
    place = f"127.0.0.1:{gathering.place[1]}"
    assert str(gathering.error) == (
        f"node 1 of 3 did not come to {place} within 0.5 s; start the same command there with --node-rank 1"
    )


def test_a_meeting_point_that_is_none() -> None:
    with pytest.raises(UsageError, match="it must be an address of node 0's own, and a free port"):
        gather(("198.51.100.7", 5000), OWN, SECRET, lambda line: None)
    with pytest.raises(UsageError, match=r"node 0 cannot listen there \(.*\); it must be an address of node 0's own"):
        gather(("no.such.host.invalid", 5000), OWN, SECRET, lambda line: None)
    for text in ("node0", "node0:", ":5000", "node0:0", "node0:99999", "node0:ssh"):
        with pytest.raises(UsageError, match="expected HOST:PORT of node 0, as in node0:29500"):
            parse_rendezvous(text)
    assert parse_rendezvous("node0:5000") == ("node0", 5000) and parse_rendezvous("[::1]:5000") == ("::1", 5000)


def test_a_name_that_is_the_loopback_on_its_own_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many systems write it into /etc/hosts; nobody else would get through."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 5000))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: found)
    with pytest.raises(UsageError, match=r"node0:5000: here that name is 127\.0\.1\.1 \(see /etc/hosts\)"):
        gather(("node0", 5000), OWN, SECRET, lambda line: None)


SHOW = """
import os, time
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")
print("up", {name: os.environ[name] for name in names}, os.getcwd(), flush=True)
time.sleep(float(os.environ.get("NAP", 0)))
"""


class Nodes:
    """`shoal launch` by hand on two nodes, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secret = folder / "secret"
        self.secret.write_bytes(SECRET)
        self.secret.chmod(0o600)
        self.port = free_port()

    @contextmanager
    def start(self, node: int, code: str = SHOW, **env: str) -> Iterator[subprocess.Popen[str]]:
        where = self.folder / f"node{node}"
        where.mkdir(exist_ok=True)
        argv = [sys.executable, "-m", "shoal", "launch", "--node-rank", str(node), "--num-nodes", "2"]
        argv += ["--rendezvous", f"127.0.0.1:{self.port}", "--nproc-per-node", "2", "--silence", "3"]
        argv += ["--log-dir", str(self.folder / "run")] if node == 0 else []
        argv += ["--", sys.executable, "-c", code]
        env = {**os.environ, "SHOAL_SECRET_FILE": str(self.secret), **env}
        with subprocess.Popen(argv, cwd=where, env=env, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def wait_for(self, text: str, limit_s: float = 30) -> None:
        """Until all four logs hold `text`."""
        logs = [self.folder / "run" / "logs" / f"worker-{rank}.log" for rank in range(4)]
        limit = time.monotonic() + limit_s
        while not all(log.exists() and text in log.read_text() for log in logs):
            assert time.monotonic() < limit, f"no {text!r} in all logs"
            time.sleep(0.05)

    def left(self) -> list[str]:
        run = str(self.folder / "run")
        return [process.command for process in tagged() if process.run == run]


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def test_two_nodes(nodes: Nodes) -> None:
    with nodes.start(1) as other, nodes.start(0) as leader:
        assert leader.wait(60) == 0, leader.stderr and leader.stderr.read()
        assert other.wait(30) == 0
    for rank in range(4):
        told = (nodes.folder / "run" / "logs" / f"worker-{rank}.log").read_text()
        coordinates = {"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2), "GROUP_RANK": str(rank // 2)}
        assert f"up {coordinates} {nodes.folder}/node{rank // 2}\n" in told  # each in its own working directory
    assert nodes.left() == []


def test_a_failure_on_one_node_ends_all_and_is_every_nodes_exit_code(nodes: Nodes) -> None:
    code = SHOW + "import sys; sys.exit(3) if os.environ['RANK'] == '3' else time.sleep(60)"
    with nodes.start(1, code) as other, nodes.start(0, code) as leader:
        assert leader.wait(60) == 1 and leader.stderr
        assert "worker 3 on node-1 failed first: exit 3" in leader.stderr.read()
        assert other.wait(30) == 1
    assert nodes.left() == []


@pytest.mark.parametrize("who", ["leader", "other"])
def test_whichever_node_is_killed_nothing_is_left(nodes: Nodes, who: str) -> None:
    with nodes.start(1, NAP="60") as other, nodes.start(0, NAP="60") as leader:
        nodes.wait_for("up")
        (leader if who == "leader" else other).kill()
        assert (other if who == "leader" else leader).wait(20) == 1
        limit = time.monotonic() + 5
        while nodes.left() and time.monotonic() < limit:
            time.sleep(0.05)
        assert nodes.left() == []


def test_a_signal_to_any_node_stops_all(nodes: Nodes) -> None:
    with nodes.start(1, NAP="60") as other, nodes.start(0, NAP="60") as leader:
        nodes.wait_for("up")
        other.send_signal(signal.SIGTERM)
        assert leader.wait(30) == 75
        assert other.wait(30) == 75
    assert nodes.left() == []


def test_another_secret_is_refused(nodes: Nodes) -> None:
    with nodes.start(0) as leader:
        assert leader.stderr and "waiting at" in leader.stderr.readline()
        nodes.secret.write_bytes(b"another secret of some length")
        with nodes.start(1) as other:
            assert other.wait(30) == 1 and other.stderr
            assert "most likely the secrets differ" in other.stderr.read()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--node-rank", "0"),
            "--num-nodes, --rendezvous: missing; by hand, every node needs --node-rank, --num-nodes",
        ),
        (("--node-rank", "2", "--num-nodes", "2", "--rendezvous", "a:5"), "--node-rank 2: expected 0 to 1"),
        (("--node-rank", "0", "--num-nodes", "2", "--rendezvous", "a"), "expected HOST:PORT of node 0"),
        (("--node-rank", "0", "--num-nodes", "2", "--rendezvous", "a:5"), "no secret: set SHOAL_SECRET_FILE=FILE"),
        (("--launcher", "hands"), "--launcher hands: is chosen by --node-rank, --num-nodes and --rendezvous"),
    ],
)
def test_wrong_usage(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    env = {key: value for key, value in os.environ.items() if key != "SHOAL_SECRET_FILE"}
    argv = [sys.executable, "-m", "shoal", "launch", *words, "--", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_fewer_workers_than_nodes(nodes: Nodes) -> None:
    argv = [sys.executable, "-m", "shoal", "launch", "-n", "1", "--node-rank", "0", "--num-nodes", "2"]
    argv += ["--rendezvous", "127.0.0.1:5", "--secret-file", str(nodes.secret), "--", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=nodes.folder)
    assert done.returncode == 2 and "2 nodes, but workers for 1 of them only; ask for more with -n" in done.stderr


@pytest.mark.slow
def test_training_by_hand_is_the_training_of_one_host(nodes: Nodes) -> None:
    """Two nodes with a working directory each; what comes out are the bits of two local workers."""
    words = ["train", "digits", "length=6st", "strategy.deterministic=true"]
    env = {**os.environ, "SHOAL_SECRET_FILE": str(nodes.secret), "OMP_NUM_THREADS": "1"}
    by_hand = ["--num-nodes", "2", "--rendezvous", f"127.0.0.1:{nodes.port}", "--node-rank"]
    shoal = [sys.executable, "-m", "shoal"]
    (nodes.folder / "elsewhere").mkdir()
    run = nodes.folder / "run"
    with (
        subprocess.Popen([*shoal, *words, *by_hand, "1"], cwd=nodes.folder / "elsewhere", env=env) as other,
        subprocess.Popen([*shoal, *words, "--run", "run", *by_hand, "0"], cwd=nodes.folder, env=env) as leader,
    ):
        assert leader.wait(120) == 0 and other.wait(30) == 0
    local = nodes.folder / "local"
    subprocess.run([*shoal, *words, "-n", "2", "--run", str(local)], env=env, check=True)
    (ours,), (theirs,) = (sorted(folder.glob("checkpoints/step-*/model.safetensors")) for folder in (run, local))
    assert ours.read_bytes() == theirs.read_bytes()
    assert nodes.left() == [] and list((nodes.folder / "elsewhere").iterdir()) == []


def test_no_parameter_servers_by_hand(nodes: Nodes) -> None:
    argv = [sys.executable, "-m", "shoal", "train", "digits", "strategy=ps", "-n", "2", "--node-rank", "0"]
    argv += ["--num-nodes", "2", "--rendezvous", "127.0.0.1:5", "--secret-file", str(nodes.secret)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=nodes.folder)
    assert done.returncode == 2 and "--node-rank starts no parameter servers" in done.stderr
