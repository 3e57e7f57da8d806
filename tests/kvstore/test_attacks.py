"""Strangers, and workers that say what they must not: gone in five seconds, told in a line, and nobody else notices."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from a_server import ServerProcess
from servers import LIMITS, SECRET, together

from shoal.kvstore.client import Client, ServerError
from shoal.kvstore.layout import Layout, Terms
from shoal.kvstore.talk import Commit, Hello
from shoal.kvstore.tls import Cover
from shoal.kvstore.updater import describe
from shoal.kvstore.wire import SIZE, Flag, Header, Op, Wire
from shoal.launch.handshake import connect

SIZE_OF_MODEL = 50_000
MEMORY_MB = 5.0
GONE_S = 5.5
"""Five seconds, and what a busy machine adds."""


class Victim:
    """A worker that goes on training while others misbehave; a second seat is free for them."""

    def __init__(self, server: ServerProcess) -> None:
        self.client = Client([server.address], 0, 2, SECRET, limits=LIMITS)
        tensors = [torch.zeros(SIZE_OF_MODEL)]
        layout, flat = Layout.of([("a", tensors[0])]), torch.zeros(SIZE_OF_MODEL)
        description = describe(torch.optim.SGD(tensors, lr=1.0), tensors)
        other = Client([server.address], 1, 2, SECRET, limits=LIMITS)
        terms = Terms(mode="async")
        together(2, lambda rank: (self.client, other)[rank].init(flat.clone(), layout, description, terms))
        other.close()
        self.flat, self.steps, self.longest_s = flat, 0, 0.0
        self._end, self._error = threading.Event(), None
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    def _train(self) -> None:
        try:
            while not self._end.is_set():
                began = time.monotonic()
                self.client.push(0, torch.ones(SIZE_OF_MODEL))
                self.client.commit(self.steps, lr=1.0)
                self.client.pull(self.flat)
                self.steps += 1
                wrong = (self.flat + self.steps).nonzero().flatten()
                assert not len(wrong), f"torn, doubled or lost: {self.flat[wrong][:5]} at {wrong[:5]} of {len(wrong)}"
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                time.sleep(0.01)
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        before, until = self.steps, time.monotonic() + 10
        while self.steps < before + 3 and self._error is None and time.monotonic() < until:
            time.sleep(0.02)
        assert self._error is None and self.steps > before

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        self.client.close()


@pytest.fixture(scope="module")
def there(tmp_path_factory) -> Iterator[tuple[ServerProcess, Victim]]:
    with ServerProcess(tmp_path_factory.mktemp("attacks"), 2) as server:
        victim = Victim(server)
        while victim.steps < 50:  # everything that a server allocates once is there
            victim.check()
        victim.longest_s = 0.0
        yield server, victim
        victim.close()


@pytest.fixture
def attack(there, lag):
    """The server; afterwards the victim must have gone on, and the server's memory must be as it was."""
    server, victim = there
    before, victim.longest_s = server.rss_mb(), 0.0
    yield server
    victim.check()
    assert victim.longest_s < lag.allows(2.0)
    assert server.rss_mb() - before < MEMORY_MB


def gone_after(connection: socket.socket) -> float:
    """Seconds until the other end closes."""
    began = time.monotonic()
    connection.settimeout(60)
    try:
        while connection.recv(65536):
            pass
    except (ConnectionError, BrokenPipeError):
        pass
    return time.monotonic() - began


def stranger(server: ServerProcess, data: bytes) -> float:
    with socket.create_connection((server.host, server.port)) as connection:
        try:
            connection.sendall(data)
        except OSError:
            pass
        return gone_after(connection)


TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(193)


@pytest.mark.parametrize(
    "data",
    [
        random.Random(1).randbytes(1 << 20),
        b"\xff" * (4 << 20),
        b"GET / HTTP/1.1\r\nHost: shoal\r\n\r\n",
        TLS_HELLO,
        Header(Op.PUSH, nbytes=10 << 30).pack(),
        b"",
    ],
    ids=["random", "ones", "http", "tls", "ten-gigabytes", "silence"],
)
def test_strangers(attack, lag, data):
    lines = len(attack.lines)
    assert stranger(attack, data) < lag.allows(GONE_S)
    (line,) = attack.says(1, since=lines)
    assert "connection closed" in line


def test_a_wrong_key(attack):
    lines = len(attack.lines)
    with pytest.raises(ServerError, match="secrets differ"):
        Client([attack.address], 1, 2, b"another secret, and a wrong one", limits=LIMITS)
    (line,) = attack.says(1, since=lines)
    assert "did not prove that it holds the job's secret" in line


def test_a_replayed_handshake(attack, lag):
    """What a listener on the network heard is worth nothing on another connection."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as between:

        def relay() -> None:
            near, _ = between.accept()
            far = socket.create_connection((attack.host, attack.port))
            near.sendall(far.recv(4096))
            heard.append(near.recv(4096))
            far.sendall(heard[0])
            near.sendall(far.recv(4096))
            time.sleep(0.1)
            far.close()
            near.close()

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        connect(between.getsockname()[:2], SECRET, "kvstore 0").close()
        thread.join()
    lines = len(attack.lines)
    assert stranger(attack, heard[0]) < lag.allows(GONE_S)
    assert sum("did not prove" in line for line in attack.says(1, since=lines)) == 1


def test_two_hundred_silent_connections(attack, lag):
    lines = len(attack.lines)
    began = time.monotonic()
    held = [socket.create_connection((attack.host, attack.port)) for _ in range(200)]
    for connection in held:
        gone_after(connection)
        connection.close()
    assert time.monotonic() - began < lag.allows(GONE_S + 1)
    assert len(attack.says(200, since=lines)) == 200


def insider(process: ServerProcess, rank: int = 1, **changes: int) -> Wire:
    """A connection that has proved itself and said who it is."""
    wire = Wire(Cover().follow(connect((process.host, process.port), SECRET, "kvstore 0")))
    hello = Hello(rank, 2, 0, 1, 0, random.Random(rank).randbytes(8))._replace(**changes)
    wire.send(Header(Op.HELLO), hello.pack())
    return wire


def refused(wire: Wire) -> str:
    """What the server says before it closes the connection."""
    wire.limit(10.0)
    while (header := wire.receive()) is not None:
        data = wire.receive_small(header)
        if header.op == Op.ERROR:
            assert wire.receive() is None
            return data.decode()
    return ""


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rank": 2}, "worker 2 of 2 cannot be"),
        ({"rank": 2**32 - 1}, "cannot be"),
        ({"num_ranks": 3}, "this job has 2 workers"),
        ({"server": 1}, "it takes this for server 1"),
        ({"rank": 0}, "worker 0 is already here"),
    ],
)
def test_ids_out_of_range(attack, changes, told):
    lines = len(attack.lines)
    assert told in refused(insider(attack, **changes))
    (line,) = attack.says(1, since=lines)
    assert told in line


INSIDER = {
    "ten-gigabytes": (Header(Op.PUSH, count=SIZE_OF_MODEL, nbytes=10 << 30).pack(), "announces 10737418240 bytes"),
    "too-long": (Header(Op.PUSH, start=1, count=SIZE_OF_MODEL).pack(), "values 1 to 50001 of 50000"),
    "far-away": (Header(Op.PULL, start=2**63, count=2**63).pack(), "values 9223372036854775808"),
    "no-table": (Header(Op.PUSH, table=9).pack(), "no table 9"),
    "large-sum": (Header(Op.SIDE, nbytes=1 << 40).pack(), "at most 1048576 are allowed"),
    "large-table": (Header(Op.INIT, nbytes=1 << 30).pack(), "at most 1048576 are allowed"),
    "no-json": (Header(Op.INIT, nbytes=4).pack() + b"\x80\x04K.", "malformed"),
    "no-tree": (Header(Op.PUSH, Flag.NODE, count=1, nbytes=4).pack(), "no node of the tree"),
    "not-shared": (Header(Op.PUSH, Flag.SHARED, count=1).pack(), "not shared"),
    "no-codec": (Header(Op.PUSH, codec=2, count=16, nbytes=4).pack(), "codec 2"),
    "no-number": (
        Header(Op.COMMIT, nbytes=Commit.SIZE).pack() + Commit(1e300, None, True, 0, 0, 0).pack(),
        "a learning rate of 1e+300",
    ),
    "no-op": (b"SHL1\xff" + bytes(SIZE - 5), "no operation 255"),
    "answer": (Header(Op.OK).pack(), "OK is not for a server"),
    "garbage": (b"\x00" * SIZE, "no message of this protocol"),
}


@pytest.mark.parametrize("name", INSIDER)
def test_insiders_that_say_what_they_must_not(attack, name):
    data, told = INSIDER[name]
    lines = len(attack.lines)
    wire = insider(attack)
    wire._connection.sendall(data)
    assert told.lower() in refused(wire).lower()
    assert len(attack.says(1, since=lines)) == 1


def test_a_table_of_ten_gigabytes_takes_what_comes(attack):
    import msgspec

    wire = insider(attack)
    shape = (5 << 30,)
    layout = Layout(("x",), (shape,), ((1,),), "float32")
    plan = {"layout": layout, "low": 0, "high": shape[0], "optimizer": None, "terms": Terms()}
    data = msgspec.json.encode(plan)
    wire.send(Header(Op.INIT, table=7), data)
    time.sleep(0.3)
    wire.close()


def test_random_messages_of_an_insider(attack):
    draw = random.Random(11)
    for _ in range(60):
        wire = insider(attack)
        wire._connection.settimeout(5)
        ops = [op for op in Op if op not in (Op.BYE, Op.SEEK, Op.BARRIER, Op.SIDE, Op.OPTIMIZER)]
        try:
            for _ in range(20):
                payload = draw.randbytes(draw.choice([0, 0, 4, 16, 40, 400]))
                header = Header(
                    draw.choice(ops), Flag(draw.randrange(128)), draw.choice([0, 0, 1, 2]), draw.choice([0, 0, 3])
                )
                header = header._replace(
                    step=draw.randrange(9), start=draw.randrange(99), count=draw.choice([0, 1, 4, 2**40])
                )
                if header.op is Op.COMMIT and len(payload) == Commit.SIZE:
                    continue  # a step of whatever was pushed before is a worker's right
                wire.send(header, payload)
        except OSError:
            pass
        wire.close()


def test_sent_byte_by_byte(attack):
    wire = insider(attack)
    for byte in Header(Op.DEAD).pack():
        wire._connection.sendall(bytes([byte]))
        time.sleep(0.002)
    wire.limit(5.0)
    wire.receive_small(wire.receive())
    answer = wire.receive()
    assert answer is not None and answer.op == Op.OK
    wire.close()
