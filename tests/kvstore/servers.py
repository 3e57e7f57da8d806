"""Servers and workers for tests: as threads of one process, or as processes that can be killed."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.kvstore.client import Client
from shoal.kvstore.layout import Limits
from shoal.kvstore.server import Server
from shoal.kvstore.tls import Cover
from shoal.launch.ports import listen

SECRET = b"a secret for tests only"
LIMITS = Limits(start_s=60.0, step_s=60.0, silence_s=60.0, return_s=60.0)
"""They only find what hangs; tests of limits bring their own."""


class Serving:
    """Servers in threads."""

    def __init__(
        self,
        workers: int,
        servers: int = 1,
        limits: Limits = LIMITS,
        snapshot: Path | None = None,
        cover: Cover | None = None,
    ) -> None:
        self.told: list[str] = []
        self.codes: dict[int, int] = {}
        listening = [listen("127.0.0.1", None) for _ in range(servers)]
        self.addresses = ["{}:{}".format(*socket.getsockname()[:2]) for socket in listening]

        def make(rank: int, socket: socket.socket) -> Server:
            return Server(
                socket,
                SECRET,
                workers,
                rank=rank,
                num_servers=servers,
                limits=limits,
                snapshot=snapshot,
                cover=cover,
                tell=self.told.append,
            )

        self._make = make
        self.servers = [make(rank, socket) for rank, socket in enumerate(listening)]
        self.threads = [
            threading.Thread(target=self._serve, args=(rank, server), daemon=True)
            for rank, server in enumerate(self.servers)
        ]
        for thread in self.threads:
            thread.start()

    def _serve(self, rank: int, server: Server) -> None:
        self.codes[rank] = server.serve()

    def restart(self, rank: int) -> None:
        """As if the server had been killed: connections break, what it knew is gone, its port is the same."""
        old = self.servers[rank]
        for session in list(old._sessions.values()):
            session.drop()
        old.rounds.fail("killed")
        self.threads[rank].join(5.0)
        host, port = self.addresses[rank].split(":")
        self.servers[rank] = self._make(rank, listen(host, range(int(port), int(port) + 1)))
        self.threads[rank] = threading.Thread(target=self._serve, args=(rank, self.servers[rank]), daemon=True)
        self.threads[rank].start()

    def client(self, rank: int, num_ranks: int, **options: Any) -> Client:
        options.setdefault("limits", LIMITS)
        return Client(self.addresses, rank, num_ranks, SECRET, **options)

    def end(self, limit_s: float = 60.0) -> None:
        until = time.monotonic() + limit_s
        for thread in self.threads:
            thread.join(max(0.0, until - time.monotonic()))


@contextmanager
def serving(workers: int, servers: int = 1, **options: Any) -> Iterator[Serving]:
    serving = Serving(workers, servers, **options)
    try:
        yield serving
    finally:
        for server in serving.servers:
            server.rounds.fail("the test is over")
        serving.end(1.0)


def together(count: int, work: Callable[[int], Any], limit_s: float = 240.0) -> list[Any]:
    """work(rank) for each rank at once, in threads; the first error is raised."""
    results: list[Any] = [None] * count
    errors: list[BaseException | None] = [None] * count

    def one(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except BaseException as error:
            errors[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    late = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    for error in errors:
        if error is not None:
            raise error
    assert not late, f"workers {late} hang"
    return results
