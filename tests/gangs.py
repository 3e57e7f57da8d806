"""A pool of processes that play gangs: a picklable function runs as n ranks over gloo, in a fraction of a second each.

    def total(gang, start): ...           # at module level; `gang` is Alone for one rank, else a Group over gloo

    def test_total(gang_pool):
        first, second = gang_pool.run(total, 2, 40)

The processes start at the first use and import torch once. A rank that fails or hangs fails the test with its
traceback; the others are killed and the next run starts new ones.
"""

from __future__ import annotations

import datetime
import faulthandler
import io
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

_START_S = 240.0
"""How long processes may take to import torch, on a busy machine."""
_GRACE_S = 1.0
"""After the first failure: how long the others may take to tell theirs."""


class GangError(AssertionError):
    """A rank failed or hung; the text holds the tracebacks."""


@dataclass
class _Member:
    process: SpawnProcess
    pipe: Connection
    stacks: Path
    """Where the process writes the stacks of its threads when it gets SIGUSR1."""
    told: str | None = None


class GangPool:
    """Up to `size` processes that wait for functions to run."""

    def __init__(self, size: int = 3) -> None:
        self.size = size
        self._members: list[_Member] = []
        self._folder: Path | None = None
        self._runs = 0

    @property
    def pids(self) -> list[int]:
        """Of the processes that are there now."""
        return [member.process.pid for member in self._members if member.process.pid is not None]

    def run(self, function: Callable[..., Any], n: int, *args: Any, limit_s: float = 240.0) -> list[Any]:
        """function(gang, *args) at every rank of a new gang of n. Returns what they returned, by rank.

        function, args and results travel pickled. GangError when a rank raises, dies or takes longer than limit_s.
        """
        if not 1 <= n <= self.size:
            raise ValueError(f"a gang of {n} from a pool of {self.size}")
        if not self._members:
            self._start()
        assert self._folder is not None
        self._runs += 1
        store = self._folder / f"store-{self._runs}"
        task = _packed((function, args))  # by name: the test's module is imported at the other end
        ranks = self._members[:n]
        try:
            for rank, member in enumerate(ranks):
                member.pipe.send((list(sys.path), task, rank, n, str(store), limit_s))
            results = self._collect(ranks, limit_s, function.__name__)
            for member in ranks:  # only now may connections be closed: everybody has all that was sent
                member.pipe.send("leave")
        except BaseException:  # a KeyboardInterrupt or a test's time limit too: ranks are in the middle of something
            self._kill()
            raise
        return results

    def close(self) -> None:
        """Ends the processes."""
        for member in self._members:
            try:
                member.pipe.send(None)
            except OSError:
                pass
        for member in self._members:
            member.process.join(5)
        self._kill()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = Path(tempfile.mkdtemp(prefix="gangs-"))
        for number in range(self.size):
            ours, theirs = context.Pipe()
            stacks = self._folder / f"stacks-{number}"
            process = context.Process(target=_serve, args=(theirs, str(stacks)), name=f"gang-{number}", daemon=True)
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            self._members.append(_Member(process, ours, stacks))
        try:
            self._collect(self._members, _START_S, "start")
        except BaseException:
            self._kill()
            raise

    def _collect(self, members: list[_Member], limit_s: float, what: str) -> list[Any]:
        """One answer of each member, by rank."""
        results: dict[int, Any] = {}
        faults: dict[int, str] = {}
        until = time.monotonic() + limit_s
        while len(results) + len(faults) < len(members):
            missing = {member.pipe: rank for rank, member in enumerate(members) if rank not in {*results, *faults}}
            ready = wait(list(missing), max(0.0, until - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                rank = missing[pipe]  # type: ignore[index]
                answer: Any
                try:
                    fine, answer = pipe.recv()  # type: ignore[union-attr]
                except (EOFError, OSError):
                    members[rank].process.join(5)
                    fine, answer = False, f"the process ended with code {members[rank].process.exitcode}"
                if fine:
                    results[rank] = pickle.loads(answer)
                else:
                    faults[rank] = answer
            if faults:
                until = min(until, time.monotonic() + _GRACE_S)
        if len(results) == len(members):
            return [results[rank] for rank in range(len(members))]
        if not faults:
            silent = [rank for rank in range(len(members)) if rank not in results]
            faults = {rank: f"no answer within {limit_s:g} s\n{_stacks(members[rank])}" for rank in silent}
        told = "\n".join(f"--- rank {rank} of {len(members)} ({what}):\n{text}" for rank, text in faults.items())
        raise GangError(told)

    def _kill(self) -> None:
        for member in self._members:
            member.process.kill()
            member.process.join()
            member.process.close()
            member.pipe.close()
        self._members = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


@contextmanager
def gangs(size: int = 3) -> Iterator[GangPool]:
    """A pool that leaves no process behind."""
    pool = GangPool(size)
    try:
        yield pool
    finally:
        pool.close()


def _stacks(member: _Member) -> str:
    if member.process.pid is None or not member.process.is_alive():
        return f"the process ended with code {member.process.exitcode}"
    os.kill(member.process.pid, signal.SIGUSR1)
    time.sleep(0.5)
    return member.stacks.read_text(errors="replace")


def _serve(pipe: Connection, stacks: str) -> None:
    """The life of one process: import torch, then run what comes until the pool ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pool's to act on
    with open(stacks, "w") as file:
        faulthandler.register(signal.SIGUSR1, file)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # whatever this machine's name resolves to
        import torch

        torch.set_num_threads(1)
        pipe.send((True, pickle.dumps(None)))
        try:
            while (task := pipe.recv()) is not None:
                _play(pipe, *task)
        except (EOFError, OSError):
            pass  # the pool's process is gone
    os._exit(0)  # torch takes its time to leave


class _Packer(pickle.Pickler):
    """Tensors as arrays: torch packs each as a file of its own, which takes longer than the trainings of most tests."""

    def reducer_override(self, obj: Any) -> Any:
        import torch

        if type(obj) is not torch.Tensor or obj.device.type != "cpu":
            return NotImplemented
        return torch.from_numpy, (obj.detach().numpy(),)


def _packed(result: Any) -> bytes:
    held = io.BytesIO()
    _Packer(held, protocol=pickle.HIGHEST_PROTOCOL).dump(result)
    return held.getvalue()


def _play(pipe: Connection, path: list[str], task: bytes, rank: int, n: int, store: str, limit_s: float) -> None:
    import torch.distributed as dist

    from shoal.step.gang import Alone, Gang, Group

    sys.path[:] = path
    gang: Gang | None = None
    try:
        if n == 1:
            gang = Alone()
        else:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{store}",
                rank=rank,
                world_size=n,
                timeout=datetime.timedelta(seconds=limit_s),
            )
            gang = Group()
        function, args = pickle.loads(task)
        answer = (True, _packed(function(gang, *args)))
    except BaseException:
        answer = (False, traceback.format_exc())
    pipe.send(answer)
    if answer[0]:
        pipe.recv()  # "leave"; a failed rank is killed instead
    if gang is not None:
        gang.close()
