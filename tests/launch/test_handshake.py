"""The handshake: holders of the secret meet; nobody else gets in, whatever they send, and nobody can block the door."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lag import Lag
from shoal.base.errors import UsageError
from shoal.launch.handshake import MAGIC, Door, HandshakeError, connect, read_secret

SECRET = b"0123456789abcdef" * 4


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door(socket.create_server(("127.0.0.1", 0)), SECRET, "agent", most=4, limit_s=0.5)
    yield door
    door.close()


def address(door: Door) -> tuple[str, int]:
    return door._listening.getsockname()[:2]


def served(door: Door, act: Callable[[], object]) -> tuple[object, object]:
    """What `act` gave or raised, and what the door let in meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act)
        inside = None
        limit = time.monotonic() + 10
        while inside is None and time.monotonic() < limit and not (acting.done() and not door._guests):
            inside = door.accept(0.02)
        return acting.exception(10) or acting.result(), inside


def test_holders_of_the_secret_meet(door: Door) -> None:
    ours, inside = served(door, lambda: connect(address(door), SECRET, "agent"))
    assert isinstance(ours, socket.socket) and isinstance(inside, tuple)
    theirs, source = inside
    assert source == ours.getsockname()
    with ours, theirs:
        ours.sendall(b"up")
        theirs.sendall(b"down")
        assert (theirs.recv(9), ours.recv(9)) == (b"up", b"down")
        assert ours.gettimeout() is None and theirs.gettimeout() is None
    assert door.refused == 0


def test_what_follows_the_handshake_at_once_is_not_swallowed(door: Door) -> None:
    def hasty() -> socket.socket:
        connection = connect(address(door), SECRET, "agent")
        connection.sendall(b"hello\n")
        return connection

    ours, inside = served(door, hasty)
    assert isinstance(ours, socket.socket) and isinstance(inside, tuple)
    with ours, inside[0] as theirs:
        assert theirs.recv(99) == b"hello\n"


@pytest.mark.parametrize(
    ("secret", "purpose"), [(b"fedcba9876543210" * 4, "agent"), (SECRET, "server"), (b"", "agent")]
)
def test_others_are_refused(door: Door, secret: bytes, purpose: str) -> None:
    raised, inside = served(door, lambda: connect(address(door), secret, purpose))
    assert isinstance(raised, HandshakeError) and "closed the connection; most likely the secrets differ" in str(raised)
    assert inside is None and door.refused == 1


def test_who_connects_wants_proof_too() -> None:
    """A door that lets everyone in learns nothing and is left."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def impostor() -> bytes:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(MAGIC + bytes(32))
                said = connection.recv(999)
                connection.sendall(said[-32:])  # its own proof, sent back
                return said + connection.recv(999)

        with ThreadPoolExecutor(1) as pool:
            acting = pool.submit(impostor)
            with pytest.raises(HandshakeError, match="does not hold the job's secret"):
                connect(listening.getsockname()[:2], SECRET, "agent")
            assert SECRET not in acting.result(10)


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.7\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9])
def test_a_port_that_is_somebody_elses(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def other() -> None:
            connection, _ = listening.accept()
            connection.sendall(said)
            connection.recv(999)
            connection.close()

        with ThreadPoolExecutor(1) as pool:
            pool.submit(other)
            with pytest.raises(HandshakeError, match=r"no Shoal of this version|not answer as Shoal|closed the conn"):
                connect(listening.getsockname()[:2], SECRET, "agent", limit_s=0.5)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        place = listening.getsockname()[:2]
    with pytest.raises(HandshakeError, match=rf"127.0.0.1:{place[1]}: no connection \(Connection refused\)"):
        connect(place, SECRET, "agent")


def test_the_silent_and_the_slow_are_sent_away(door: Door, lag: Lag) -> None:
    def slow() -> bytes:
        with socket.create_connection(address(door)) as connection:
            connection.recv(99)
            try:
                for byte in MAGIC + bytes(64):  # a byte at a time: the limit is for the whole, not for each
                    connection.sendall(bytes([byte]))
                    time.sleep(0.05)
            except OSError:
                pass
            return b""

    began = lag.begin()
    with socket.create_connection(address(door)) as silent:
        _, inside = served(door, slow)
        assert inside is None and door.refused == 2
        assert silent.recv(99)[: len(MAGIC)] == MAGIC and silent.recv(99) == b""
    assert time.monotonic() - began < lag.allows(5)


def test_a_crowd_of_strangers_does_not_block_the_door(door: Door) -> None:
    crowd = [socket.create_connection(address(door)) for _ in range(50)]
    try:
        ours, inside = served(door, lambda: connect(address(door), SECRET, "agent"))
        assert isinstance(ours, socket.socket) and isinstance(inside, tuple)
        ours.close()
        inside[0].close()
        assert len(door._guests) <= 4
    finally:
        for connection in crowd:
            connection.close()


def test_a_replay_is_worth_nothing(door: Door) -> None:
    """Every byte that an honest one sent, sent again."""
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as between:

        def listen_in() -> None:
            client, _ = between.accept()
            with client, socket.create_connection(address(door)) as server:
                client.sendall(server.recv(99))
                heard.extend(client.recv(999))
                server.sendall(heard)
                client.sendall(server.recv(99))

        tapped = threading.Thread(target=listen_in)
        tapped.start()
        ours, inside = served(door, lambda: connect(between.getsockname()[:2], SECRET, "agent"))
        tapped.join()
        assert isinstance(ours, socket.socket) and isinstance(inside, tuple)
        ours.close()
        inside[0].close()
    assert heard.startswith(MAGIC)

    def replay() -> bytes:
        with socket.create_connection(address(door)) as connection:
            connection.recv(99)
            connection.sendall(heard)
            return connection.recv(99)

    said, inside = served(door, replay)
    assert (said, inside) == (b"", None) and door.refused == 1


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=200)
    | st.binary(max_size=120).map(lambda data: MAGIC + data)
    | st.binary(min_size=64, max_size=64).map(lambda data: MAGIC + data),
    st.booleans(),
)
def test_no_bytes_open_the_door(door: Door, said: bytes, hang_up: bool) -> None:
    with socket.create_connection(address(door)) as connection:
        connection.sendall(said)
        if hang_up:
            connection.shutdown(socket.SHUT_WR)
        for _ in range(3):
            assert door.accept(0.002) is None
    assert door.accept(0.01) is None


def test_fileno_tells_when_there_is_something_to_do(door: Door) -> None:
    import select

    assert select.select([door], [], [], 0)[0] == []
    with socket.create_connection(address(door)):
        assert select.select([door], [], [], 5)[0] == [door]


def secret_file(folder: Path, data: bytes, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_bytes(data)
    path.chmod(mode)
    return path


def test_a_secret_from_a_file(tmp_path: Path) -> None:
    path = secret_file(tmp_path, SECRET + b"\n")
    assert read_secret(path) == SECRET
    assert read_secret(env={"SHOAL_SECRET_FILE": str(path)}) == SECRET


@pytest.mark.parametrize(
    ("data", "mode", "said"),
    [
        (SECRET, 0o644, "others can read or write it; run: chmod 600 "),
        (SECRET, 0o620, "others can read or write it"),
        (b"short\n", 0o600, "has 5 bytes, expected 16 to 4096"),
        (b"", 0o600, "has 0 bytes"),
        (b"x" * 5000, 0o600, "expected 16 to 4096"),
    ],
)
def test_a_secret_that_is_none(tmp_path: Path, data: bytes, mode: int, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_secret(secret_file(tmp_path, data, mode))
    assert said in str(raised.value) and "\n" not in str(raised.value)
    if data:
        assert data.decode().strip() not in str(raised.value)


def test_no_secret_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no secret: set SHOAL_SECRET_FILE=FILE; make one with: "):
        read_secret(env={})
    with pytest.raises(UsageError, match="cannot be read \\(No such file"):
        read_secret(tmp_path / "none")
    with pytest.raises(UsageError, match="is no file"):
        read_secret(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UsageError, match="is no file"):
        read_secret(tmp_path / "pipe")
