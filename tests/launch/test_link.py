"""The link: messages whole and in order, silence and ends noticed, never blocking."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from shoal.launch import link as module
from shoal.launch.link import FULL, Link, LinkError, Message, parse


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    one, other = os.pipe(), os.pipe()
    here, there = Link(one[0], other[1]), Link(other[0], one[1])
    yield here, there
    for end in (here, there):
        if end.reads >= 0:
            end.cut()


def all_of(link: Link, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        found += link.receive()
    return found


def test_messages_come_whole_and_in_order(ends: tuple[Link, Link]) -> None:
    here, there = ends
    sent = [{"do": "start", "argv": ["a\nb", "ü" * 100], "number": number} for number in range(20)]
    for message in sent:
        here.send(message)
    assert all_of(there, 20) == sent
    assert there.receive() == []


def test_more_than_a_pipe_holds_waits_until_it_is_read(ends: tuple[Link, Link]) -> None:
    here, there = ends
    here.send({"data": "x" * 2 * FULL})
    assert here.unsent > FULL
    found: list[Message] = []
    while not found:
        here.flush()
        found = there.receive()
    assert len(found[0]["data"]) == 2 * FULL
    assert here.unsent == 0


def test_a_beat_is_life_and_no_message(ends: tuple[Link, Link]) -> None:
    here, there = ends
    there.heard_at = time.monotonic() - 60
    assert there.silent_s >= 60
    here.beat()
    here.beat()  # too soon for another
    assert there.receive() == []
    assert there.silent_s < 10


def test_the_end_is_noticed_after_the_last_words(ends: tuple[Link, Link]) -> None:
    here, there = ends
    here.send({"is": "last"})
    here.close()
    assert all_of(there, 1) == [{"is": "last"}]
    there.receive()
    assert there.is_over


def test_sending_to_nobody_is_silent(ends: tuple[Link, Link]) -> None:
    here, there = ends
    there.cut()
    here.send({"is": "heard by nobody"})
    here.send({"is": "neither"})
    assert here.unsent == 0


@pytest.mark.parametrize("line", [b"", b"hello", b"[1]", b"3", b'{"a":'])
def test_what_is_no_message(line: bytes) -> None:
    with pytest.raises(LinkError):
        parse(line)


def test_only_a_noisy_link_takes_noise_and_only_before_the_first_message() -> None:
    reads, writes = os.pipe()
    link = Link(reads, os.open(os.devnull, os.O_WRONLY), noisy=True)
    os.write(writes, b'Welcome!\nLast login: today\n{"is":"here"}\n')
    assert link.receive() == [{"is": "here"}]
    os.write(writes, b"more noise\n")
    with pytest.raises(LinkError, match="more noise"):
        link.receive()
    os.close(writes)
    link.cut()


def test_a_line_without_end_is_no_message(ends: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST", 1000)
    here, there = ends
    os.write(here.writes, b"x" * 2000)
    with pytest.raises(LinkError, match="without end"):
        there.receive()
