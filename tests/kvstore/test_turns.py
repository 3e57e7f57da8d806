"""What is asked for happens in that order, on whichever thread."""

from __future__ import annotations

import threading
import time

import pytest

from shoal.kvstore.turns import Turns


@pytest.fixture
def turns():
    made = Turns("turns")
    yield made
    made.close()


def test_a_question_comes_after_all_that_was_left(turns):
    done, hold = [], threading.Event()
    turns.submit(lambda: (hold.wait(10), done.append(0)))
    for number in range(1, 100):
        turns.soon(done.append, number, here=number % 2 == 0)
    threading.Timer(0.05, hold.set).start()
    assert turns.do(lambda: list(done)) == list(range(100))


def test_idle_means_on_this_thread_and_else_on_the_own(turns):
    seen, hold = [], threading.Event()
    turns.soon(lambda: seen.append(threading.current_thread()), here=True)
    assert seen == [threading.current_thread()]
    first = turns.submit(hold.wait, 10)
    began = time.monotonic()
    turns.soon(lambda: seen.append(threading.current_thread()), here=True)  # the caller goes on
    assert time.monotonic() - began < 5 and len(seen) == 1
    hold.set()
    assert first.result(10)
    assert turns.submit(len, seen).result(10) == 2
    assert seen[1] is not threading.current_thread()


def test_what_goes_wrong_unwaited_for_stops_nothing(turns):
    turns.soon(lambda: 1 / 0, here=True)
    turns.soon(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        turns.do(turns.check)
    turns.check()
    with pytest.raises(ZeroDivisionError):
        turns.submit(lambda: 1 / 0).result(10)
    with pytest.raises(ZeroDivisionError):
        turns.do(lambda: 1 / 0)
    assert turns.do(lambda: 7) == 7
