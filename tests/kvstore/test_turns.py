"""What a link is asked happens in the order in which it was asked, on whichever thread."""

from __future__ import annotations

import threading
import time

import pytest

from shoal.kvstore.layout import Limits
from shoal.kvstore.link import Link
from shoal.kvstore.tls import Cover


@pytest.fixture
def link():
    made = Link("127.0.0.1:1", 0, 1, 0, 1, bytes(8), b"secret", Limits(), print, Cover(None, plain=True))
    yield made
    made.close()


def test_a_question_comes_after_all_that_was_left(link):
    done, hold = [], threading.Event()
    link.submit(lambda: (hold.wait(10), done.append(0)))
    for number in range(1, 100):
        link.soon(done.append, number, here=number % 2 == 0)
    threading.Timer(0.05, hold.set).start()
    assert link.do(lambda: list(done)) == list(range(100))


def test_idle_means_on_this_thread_and_else_on_the_links(link):
    seen, hold = [], threading.Event()
    link.soon(lambda: seen.append(threading.current_thread()), here=True)
    assert seen == [threading.current_thread()]
    first = link.submit(hold.wait, 10)
    began = time.monotonic()
    link.soon(lambda: seen.append(threading.current_thread()), here=True)  # the caller goes on
    assert time.monotonic() - began < 5 and len(seen) == 1
    hold.set()
    assert first.result(10)
    assert link.submit(len, seen).result(10) == 2
    assert seen[1] is not threading.current_thread()


def test_what_goes_wrong_unwaited_for_stops_nothing(link):
    link.soon(lambda: 1 / 0, here=True)
    link.soon(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        link.submit(lambda: 1 / 0).result(10)
    with pytest.raises(ZeroDivisionError):
        link.do(lambda: 1 / 0)
    assert link.do(lambda: 7) == 7
