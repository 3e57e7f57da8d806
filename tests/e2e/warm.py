"""Warm workers: `shoal` in processes forked from one that holds torch already, some 0.1 s instead of 3 s to start.

One of them trains alone, as `shoal train` does; several are the workers of a world that torchrun could have made. Only
the time of imports is saved: they run the command line from its arguments to its exit code.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import socket
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from program import CPU, LIMIT_S, Result

PRELOAD = [
    "torch",
    "shoal.train.worker",
    "shoal.cli.train",
    "shoal.cli.eval",
    "shoal.report.plots",
    "shoal.report.page",
    "jinja2",
    "timm.optim",
]
PRELOAD += ["matplotlib.figure", "matplotlib.backends.backend_agg", "tensorboard.compat.proto.event_pb2"]


class Warm:
    """The warm processes of one `shoal` command; rank 0 speaks for all."""

    def __init__(self, folder: Path, *args: str | Path, n: int = 1, file_limit: int | None = None) -> None:
        """folder: where output goes. file_limit: bytes that a file may have, as on a full disk."""
        folder.mkdir(parents=True, exist_ok=True)
        self._said = [(_fresh(folder, rank, "out"), _fresh(folder, rank, "err")) for rank in range(n)]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        argv, port = ["shoal", *map(str, args)], _free_port() if n > 1 else 0
        self.members = [
            context.Process(target=_live, args=(argv, _world(rank, n, port), said, file_limit), daemon=True)
            for rank, said in enumerate(self._said)
        ]
        for member in self.members:
            member.start()

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL to all at once."""
        for member in self.members:
            member.kill()
        for member in self.members:
            member.join()

    def signal(self, rank: int, number: int) -> None:
        pid = self.members[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def results(self, limit_s: float = LIMIT_S) -> list[Result]:
        """Every rank's; AssertionError when one does not end."""
        for member in self.members:
            member.join(limit_s)
        results = [self._result(*pair) for pair in zip(self.members, self._said, strict=True)]
        assert all(member.exitcode is not None for member in self.members), "\n".join(map(str, results))
        return results

    def _result(self, member: ForkServerProcess, said: tuple[Path, Path]) -> Result:
        code = member.exitcode if member.exitcode is not None else -1
        return Result(code, said[0].read_text(), said[1].read_text())


def warm(folder: Path, *args: str | Path, n: int = 1, file_limit: int | None = None) -> Result:
    """`shoal ARGS` by n warm workers to its end; rank 0's result."""
    with Warm(folder, *args, n=n, file_limit=file_limit) as workers:
        return workers.results()[0]


def _fresh(folder: Path, rank: int, kind: str) -> Path:
    path = folder / f"warm-{len(list(folder.iterdir()))}-rank{rank}.{kind}"
    path.touch()
    return path


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _world(rank: int, n: int, port: int) -> dict[str, str]:
    if n == 1:
        return CPU
    ranks = {"RANK": rank, "WORLD_SIZE": n, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": n, "MASTER_PORT": port}
    return {**CPU, "MASTER_ADDR": "127.0.0.1", **{key: str(value) for key, value in ranks.items()}}


def _live(argv: list[str], env: dict[str, str], said: tuple[Path, Path], file_limit: int | None) -> None:
    for path, stream in zip(said, (sys.stdout, sys.stderr), strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), stream.fileno())
    os.environ.update(env)
    sys.argv = argv
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    from shoal.cli import main

    main()
