"""Turns: things that are done one after another, in the order in which they were asked for."""

from __future__ import annotations

import collections
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_END_S = 6.0


class Turns:
    """On a thread of its own, or on one that would wait for it anyway."""

    def __init__(self, name: str) -> None:
        self._tasks: collections.deque[Callable[[], None]] = collections.deque()
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """One for each task: the thread should look; False: it should end."""
        self._turn = threading.Lock()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[..., T], *args: Any) -> Future[T]:
        """Does it after all that was submitted before, on the own thread."""
        future: Future[T] = Future()

        def task() -> None:
            try:
                future.set_result(work(*args))
            except BaseException as error:
                future.set_exception(error)

        self._tasks.append(task)
        self._tokens.put(True)
        return future

    def do(self, work: Callable[..., T], *args: Any) -> T:
        """The same, waited for; on this thread, with what is left to do before: to wake another takes as long as a
        message."""
        with self._turn:
            self._catch_up()
            return work(*args)

    def soon(self, work: Callable[..., Any], *args: Any, here: bool = False) -> None:
        """Does it in turn, waited for by nobody: what goes wrong is raised by the next `check`.

        here: on this thread, if nothing is under way."""

        def guarded() -> None:
            try:
                work(*args)
            except BaseException as error:
                self._failed = self._failed or error

        if not here or self._tasks or not self._turn.acquire(blocking=False):
            self.submit(guarded)
            return
        try:
            guarded()
        finally:
            self._turn.release()

    def _catch_up(self) -> None:
        while self._tasks:
            self._tasks.popleft()()

    def _run(self) -> None:
        while self._tokens.get():
            with self._turn:
                if self._tasks:
                    self._tasks.popleft()()

    def check(self) -> None:
        """Raises what went wrong since, and was waited for by nobody."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    def close(self) -> None:
        """After what was submitted."""
        self._tokens.put(False)
        self._thread.join(_END_S)
