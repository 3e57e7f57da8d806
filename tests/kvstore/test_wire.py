"""Frames: whatever comes, it is a header, or a WireError in one line."""

from __future__ import annotations

import random
import re
import socket
import struct
import threading

import pytest
import torch

from shoal.kvstore.talk import Apply, Commit, Hello, Result, Share, Welcome
from shoal.kvstore.wire import SIZE, SMALL, Flag, Header, Op, Wire, WireError, parse, raw


def test_a_header_comes_back():
    header = Header(Op.PUSH, Flag.SHARED | Flag.NODE, 2, 7, 2**63, 2**40, 3, 4)
    assert parse(header.pack()) == header


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n\r\n\r\n\r\n", "no message of this protocol"),
        (Header(Op.OK).pack()[:4] + b"\xff" + Header(Op.OK).pack()[5:], "no operation 255"),
        (Header(Op.OK).pack()[:5] + b"\x80" + Header(Op.OK).pack()[6:], "no flags 0x80"),
        (b"", "a header of 0 bytes"),
    ],
)
def test_faults_are_told(data, told):
    with pytest.raises(WireError, match=told):
        parse(data[:SIZE])


def test_a_hundred_thousand_headers():
    draw = random.Random(7)
    good = bytearray(Header(Op.PUSH, table=1, step=5, start=3, count=9, nbytes=36).pack())
    fine = 0
    for case in range(100_000):
        if case % 3 == 0:
            data = draw.randbytes(SIZE)
        elif case % 3 == 1:
            data = good.copy()
            for _ in range(draw.randint(1, 4)):
                data[draw.randrange(SIZE)] = draw.randrange(256)
        else:
            data = b"SHL1" + bytes([draw.randrange(24), draw.randrange(256)]) + draw.randbytes(SIZE - 6)
            data = data[: draw.randint(0, SIZE)] if draw.random() < 0.2 else data
        try:
            header = parse(data)
        except WireError as error:
            assert "\n" not in str(error) and len(str(error)) < 200
            continue
        fine += 1
        assert header.pack() == bytes(data)
    assert fine > 1000


@pytest.mark.parametrize("record", [Hello, Welcome, Share, Commit, Apply])
def test_random_records(record):
    draw = random.Random(3)
    for _ in range(2000):
        try:
            record.unpack(draw.randbytes(record.SIZE))
        except WireError as error:
            assert re.match(r"APPLY with status|a (learning rate|largest norm|scale) of \S+; expected 0 to", str(error))
        with pytest.raises(struct.error):
            record.unpack(draw.randbytes(record.SIZE - 1))


def test_records_come_back():
    commit = Commit(None, 0.5, True, 2, 7, 2**40)
    assert Commit.unpack(commit.pack()) == commit
    result = Result(3, 1, 2, 3, 4, 5.0, (0, 9, 10), (0.1, 0.2))
    assert Result.unpack(result.pack(11, 2), 11, 2) == result
    assert len(result.pack(11, 2)) == Result.size(11, 2)


@pytest.fixture
def pair():
    one, two = socket.socketpair()
    yield Wire(one), Wire(two), one
    one.close()
    two.close()


def test_tensors_travel(pair):
    one, two, _ = pair
    values, into = torch.randn(1_000_003), torch.zeros(1_000_003)
    sender = threading.Thread(target=one.send, args=(Header(Op.PUSH, count=5), raw(values)))
    sender.start()
    header = two.receive()
    two.receive_into(header, raw(into))
    sender.join()
    assert torch.equal(values, into) and header.nbytes == 4_000_012


def test_sizes_are_compared_before_anything_is_read(pair):
    _, two, end = pair
    end.sendall(Header(Op.PUSH, nbytes=10 << 30).pack())
    header = two.receive()
    with pytest.raises(WireError, match="announces 10737418240 bytes, where there are 8"):
        two.receive_into(header, raw(torch.zeros(2)))
    with pytest.raises(WireError, match=f"at most {SMALL} are allowed"):
        two.receive_small(header)


def test_ends(pair):
    _, two, end = pair
    end.sendall(Header(Op.OK).pack()[:-1])
    end.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError):
        two.receive()


def test_buffers_are_small_on_one_host_only(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near, far = (socket.create_connection(listening.getsockname()) for _ in range(2))
        kept = far.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        Wire(near)
        monkeypatch.setattr("shoal.kvstore.wire._is_loop", lambda connection: False)
        Wire(far)
        sizes = [end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) for end in (near, far)]
        near.close(), far.close()
    assert 1 << 18 <= sizes[0] <= 1 << 19
    assert sizes[1] == kept
