"""Watch: what was ready when a turn began, and what its readers do to each other meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from shoal.launch.watch import Watch


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    yield watch
    watch.close()


def test_a_reader_is_called_until_nothing_more_will_come(watch: Watch) -> None:
    reads, writes = os.pipe()
    said: list[bytes] = []

    def read() -> bool:
        said.append(os.read(reads, 10))
        return said[-1] != b""

    watch.add(reads, read)
    os.write(writes, b"a")
    watch.turn(5)
    watch.turn(0)
    os.close(writes)
    watch.turn(5)
    assert said == [b"a", b""] and reads not in watch
    watch.drop(reads)
    watch.turn(0)
    os.close(reads)
    assert said == [b"a", b""]


@pytest.mark.parametrize("answer", [True, False])
def test_a_number_that_comes_back_within_a_turn_belongs_to_its_new_owner(watch: Watch, answer: bool) -> None:
    pipes = [os.pipe(), os.pipe()]
    calls: list[str] = []

    def read_new() -> bool:
        calls.append("new")
        return True

    def replace_both() -> bool:
        calls.append("old")
        for reads, writes in pipes:
            watch.drop(reads)
            os.write(writes, b"y")
            fresh, _ = os.pipe()
            os.dup2(fresh, reads)  # nothing to read there
            watch.add(reads, read_new)
        return answer

    for reads, writes in pipes:
        watch.add(reads, replace_both)
        os.write(writes, b"x")
    watch.turn(5)
    assert calls == ["old"]
    assert all(reads in watch for reads, _ in pipes)
