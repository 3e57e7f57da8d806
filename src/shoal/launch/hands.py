"""Hands: people start the agents themselves, with the same command on every node; all come to node 0, which leads."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence

from shoal.base.errors import FAILED, ShoalError, UsageError
from shoal.launch.handshake import Door, NoSuchHost, Unreachable, connect
from shoal.launch.leash import Leash
from shoal.launch.seats import PURPOSE, Seat, Seats, nodes, take

WAIT_S = 600.0
"""How long to wait for people on the other nodes."""
_RETRY_S = 0.5
_NAMES_S = 60
"""How long a pod waits for its own name to be known."""


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
    with Seats(door, range(1, own.num_nodes), lambda seat, seated: _refusal(seat, own, seated), show) as seats:
        limit = time.monotonic() + wait_s
        show(f"waiting at {where} for {nodes(range(1, own.num_nodes))}")
        while missing := seats.missing:
            if time.monotonic() >= limit:
                raise ShoalError(
                    f"{nodes(missing)} of {own.num_nodes} did not come to {where} within {wait_s:g} s; "
                    f"start the same command there with --node-rank {missing[0]}"
                )
            seats.turn(min(1.0, wait_s))
        return seats.begin()


def join(
    rendezvous: tuple[str, int], seat: Seat, secret: bytes, show: Callable[[str], None], *, wait_s: float = WAIT_S
) -> int:
    """Another node: comes to node 0 and is an agent of its job until that ends; the exit code, which is the job's."""
    connection = _connect(rendezvous, secret, show, wait_s)
    with connection:
        take(connection, seat, "node 0")
        show(f"node {seat.node}: all nodes have come; node 0 tells how it goes")
        return _agent(connection)


def _connect(rendezvous: tuple[str, int], secret: bytes, show: Callable[[str], None], wait_s: float) -> socket.socket:
    """Keeps trying as long as nobody answers: nodes are started in any order."""
    limit = time.monotonic() + wait_s
    is_told = False
    while True:
        try:
            return connect(rendezvous, secret, PURPOSE)
        except (Unreachable, NoSuchHost) as error:
            if isinstance(error, NoSuchHost) and not _names_come_late():
                raise
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


def _names_come_late() -> bool:
    """Whether this is a pod: its name, and the others', are known some seconds after it has begun."""
    return "KUBERNETES_SERVICE_HOST" in os.environ


def _listen(rendezvous: tuple[str, int]) -> socket.socket:
    host, port = rendezvous
    try:
        for _ in range(_NAMES_S if _names_come_late() else 0):
            with contextlib.suppress(socket.gaierror):
                socket.getaddrinfo(host, port)
                break
            time.sleep(1)
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


def _refusal(seat: Seat, own: Seat, seated: Collection[int]) -> str | None:
    if seat.num_nodes != own.num_nodes:
        return f"--num-nodes is {own.num_nodes} here and {seat.num_nodes} on node {seat.node}"
    if not 0 < seat.node < own.num_nodes:
        return f"--node-rank {seat.node}: expected 1 to {own.num_nodes - 1}"
    if seat.node in seated:
        return f"--node-rank {seat.node} has come already; every node has a number of its own"
    if seat.command != own.command:
        return f"node {seat.node} was started with another command; every node needs the same"
    return None
