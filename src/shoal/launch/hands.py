"""Hands: people start the agents themselves, with the same command on every node; all come to node 0, which leads.

A connection begins with the handshake of `handshake.py`. Then the node says in one line which it is, and waits; when
all have come, node 0 says `ok`, and the connection is the link of that node's agent.
"""

from __future__ import annotations

import hashlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from shoal.base.errors import FAILED, ShoalError, UsageError
from shoal.launch.handshake import Door, Unreachable, connect
from shoal.launch.leash import Leash

PURPOSE = "node"
WAIT_S = 600.0
"""How long to wait for people on the other nodes."""
_RETRY_S = 0.5
_LONGEST = 4096
_SAY_S = 5.0
"""How long a node may take to say which it is."""


@dataclass(frozen=True)
class Seat:
    """What a node says of itself; all nodes must have been told the same job."""

    node: int
    num_nodes: int
    command: str
    """`digest` of the command line."""


def digest(words: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(words)).encode()).hexdigest()[:16]


def parse_rendezvous(text: str) -> tuple[str, int]:
    """`host:port` of node 0."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"--rendezvous {text}: expected HOST:PORT of node 0, as in node0:29500")
    return host, int(port)


def gather(
    rendezvous: tuple[str, int], own: Seat, secret: bytes, show: Callable[[str], None], *, wait_s: float = WAIT_S
) -> dict[int, socket.socket]:
    """Node 0: the connections of all other nodes, once all have come. ShoalError names those that did not."""
    where = f"{rendezvous[0]}:{rendezvous[1]}"
    door = Door(_listen(rendezvous), secret, PURPOSE)
    seated: dict[int, socket.socket] = {}
    try:
        limit = time.monotonic() + wait_s
        show(f"waiting at {where} for {_nodes(range(1, own.num_nodes))}")
        while missing := [node for node in range(1, own.num_nodes) if node not in seated]:
            if time.monotonic() >= limit:
                raise ShoalError(
                    f"{_nodes(missing)} of {own.num_nodes} did not come to {where} within {wait_s:g} s; "
                    f"start the same command there with --node-rank {missing[0]}"
                )
            _unseat(seated, show)
            if came := door.accept(min(1.0, wait_s)):
                connection, address = came
                node = _seat(connection, own, seated, show)
                if node is not None:
                    seated[node] = connection
                    show(f"node {node} has come from {address[0]}")
        for connection in seated.values():
            _say(connection, {"ok": True})
            connection.settimeout(None)
        return seated
    except BaseException:
        for connection in seated.values():
            connection.close()
        raise
    finally:
        door.close()


def join(
    rendezvous: tuple[str, int], seat: Seat, secret: bytes, show: Callable[[str], None], *, wait_s: float = WAIT_S
) -> int:
    """Another node: comes to node 0 and is an agent of its job until that ends; the exit code, which is the job's."""
    connection = _connect(rendezvous, secret, show, wait_s)
    with connection:
        _keep_alive(connection)
        _say(connection, asdict(seat))
        answer = _hear(connection, None)
        if answer is None:
            raise ShoalError("node 0 went away before the start; its own output says why")
        if "refused" in answer:
            raise UsageError(f"node 0: {answer['refused']}")
        show(f"node {seat.node}: all nodes have come; node 0 tells how it goes")
        return _agent(connection)


def _connect(rendezvous: tuple[str, int], secret: bytes, show: Callable[[str], None], wait_s: float) -> socket.socket:
    """Keeps trying as long as nobody answers: nodes are started in any order."""
    limit = time.monotonic() + wait_s
    is_told = False
    while True:
        try:
            return connect(rendezvous, secret, PURPOSE)
        except Unreachable as error:
            if time.monotonic() >= limit:
                raise ShoalError(f"node 0 at {error}; start it there with --node-rank 0") from None
            if not is_told:
                is_told = True
                show(f"waiting for node 0 at {rendezvous[0]}:{rendezvous[1]}")
            time.sleep(_RETRY_S)


def _agent(connection: socket.socket) -> int:
    """Runs the agent with the connection as its link; signals are for it. It ends when this process ends."""
    here, there = connection.getsockname(), connection.getpeername()
    # As under ssh: by which addresses the two hosts see each other.
    env = {**os.environ, "SSH_CONNECTION": f"{there[0]} {there[1]} {here[0]} {here[1]}"}
    leash = Leash()
    agent = subprocess.Popen(
        (sys.executable, "-m", "shoal", "agent"),
        env=env,
        stdin=connection.fileno(),
        stdout=connection.fileno(),
        pass_fds=leash.descriptors,
        start_new_session=True,
        preexec_fn=leash.arm,
    )
    leash.started()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.signal(number, lambda number, frame: agent.send_signal(number)) for number in signals}
    connection.close()  # the agent's alone from now on
    try:
        code = agent.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        leash.drop()
    return code if code >= 0 else FAILED


def _listen(rendezvous: tuple[str, int]) -> socket.socket:
    host, port = rendezvous
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if _is_loopback(str(place[0])) and host != "localhost" and not _is_loopback(host):
            raise UsageError(
                f"--rendezvous {host}:{port}: here that name is {place[0]} (see /etc/hosts), which no other node "
                "reaches; give node 0's address in its place, on every node"
            )
        return socket.create_server(place[:2], family=family, backlog=128)
    except OSError as error:
        raise UsageError(
            f"--rendezvous {host}:{port}: node 0 cannot listen there ({error.strerror}); "
            "it must be an address of node 0's own, and a free port"
        ) from None


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _seat(
    connection: socket.socket, own: Seat, seated: dict[int, socket.socket], show: Callable[[str], None]
) -> int | None:
    """Which node it is; None where it cannot be one of this job, which it is told."""
    said = _hear(connection, _SAY_S)
    try:
        seat = Seat(int(said["node"]), int(said["num_nodes"]), str(said["command"])) if said else None
    except (KeyError, TypeError, ValueError):
        seat = None
    if seat is None:
        connection.close()
        return None
    refused = None
    if seat.num_nodes != own.num_nodes:
        refused = f"--num-nodes is {own.num_nodes} here and {seat.num_nodes} on node {seat.node}"
    elif not 0 < seat.node < own.num_nodes:
        refused = f"--node-rank {seat.node}: expected 1 to {own.num_nodes - 1}"
    elif seat.node in seated:
        refused = f"--node-rank {seat.node} has come already; every node has a number of its own"
    elif seat.command != own.command:
        refused = f"node {seat.node} was started with another command; every node needs the same"
    if refused is None:
        _keep_alive(connection)
        return seat.node
    show(f"refused: {refused}")
    _say(connection, {"refused": refused})
    connection.close()
    return None


def _unseat(seated: dict[int, socket.socket], show: Callable[[str], None]) -> None:
    """Frees the seats of nodes that went away again."""
    if not seated:
        return
    with selectors.DefaultSelector() as selector:
        for node, connection in seated.items():
            selector.register(connection, selectors.EVENT_READ, node)
        for key, _ in selector.select(0):  # it has nothing to say now: this is its end
            seated.pop(key.data).close()
            show(f"node {key.data} went away again")


def _say(connection: socket.socket, message: object) -> None:
    try:
        connection.settimeout(_SAY_S)
        connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        pass  # it is gone, which shows where it is read from


def _hear(connection: socket.socket, limit_s: float | None) -> dict | None:
    """One line of limited length, and not a byte more: what follows is the link's. None where there is none."""
    limit = None if limit_s is None else time.monotonic() + limit_s
    line = b""
    try:
        while not line.endswith(b"\n") and len(line) < _LONGEST:
            connection.settimeout(None if limit is None else max(0.001, limit - time.monotonic()))
            byte = connection.recv(1)
            if not byte:
                return None
            line += byte
        said = json.loads(line)
        return said if isinstance(said, dict) else None
    except (OSError, ValueError):
        return None


def _keep_alive(connection: socket.socket) -> None:
    """So that the end of a host that falls silent is noticed while nobody has anything to say."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _nodes(nodes: Sequence[int]) -> str:
    return f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}"
