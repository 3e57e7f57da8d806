"""Jobs for the chaos test: the running command, and where its processes are."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cases import SILENCE_S, Case
from cluster import Hosts
from command import CPU
from lively import DATA_WORKER
from processes import children, command, environment, everybody, lives, name, parent

from shoal.base.run import Run
from shoal.launch.leash import Leash

HERE = Path(__file__).parent
PORTS = 15000
"""Where the ports begin that the processes listen on; every cluster has its own, for some run on the head."""
TRAINING = ("digits", "data.limit=400", "batch=40", "shards=4", "strategy.deterministic=true", "strategy.threads=1",
            "save_every=10st", "length=30ep")  # fmt: skip


class Job:
    """A small script on six places, or a training of two workers, on two hosts."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, *, trains: bool) -> None:
        self.process, self.folder, self.trains = process, folder, trains
        self.run = Run(folder / "run")
        self.rank = -1
        """The worker that is struck."""
        self.began = time.monotonic()
        self.start_s = 0.0
        """What the start took, until all of it ran."""
        self._id = ""

    def is_ready(self) -> bool:
        """Whether all of it runs."""
        if self.trains:
            return bool(self.run.steps_saved())
        return len([path for path in self.folder.iterdir() if path.name[-1].isdigit()]) >= 6

    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")

    def tagged(self) -> list[int]:
        """By the tag, which is learnt from the first process that knows our folder."""
        found = []
        for pid in everybody():
            known = environment(pid)
            if not self._id and known.get("CHAOS_READY") == str(self.folder) and known.get("SHOAL_JOB"):
                self._id = known["SHOAL_JOB"]
            mine = known.get("CHAOS_READY") == str(self.folder) or (self._id and known.get("SHOAL_JOB") == self._id)
            if mine and known.get("SHOAL_JOB") and lives(pid):
                found.append(pid)
        return found

    def find(self, case: Case) -> int | None:
        """The process to strike."""
        if case.target == "launcher":
            return self.process.pid
        if case.target in ("ssh", "sshd"):
            clients = [pid for pid in children(self.process.pid) if name(pid) == "ssh"]
            if case.target == "ssh":
                return clients[0] if clients else None
            agents = [pid for pid in self.tagged() if "shoal agent" in command(pid)]
            sessions = [parent(pid) for pid in agents if name(parent(pid)).startswith("sshd")]
            return sessions[0] if sessions else None
        if case.target in ("agent", "warden"):
            tagged = [pid for pid in self.tagged() if "shoal agent" in command(pid)]
            inner = [pid for pid in tagged if "shoal agent" in command(parent(pid))]
            found = inner if case.target == "agent" else [parent(pid) for pid in inner]
            return found[int(case.delay_s * 10) % len(found)] if found else None
        for pid in self.tagged():
            known = environment(pid)
            role, rank = known.get("SHOAL_ROLE"), known.get("SHOAL_RANK", "")
            if case.target == "data worker":
                if name(pid) == DATA_WORKER:
                    return pid
            elif role == case.target and self._is_main(pid):
                if case.target == "worker":
                    if rank != str(int(case.delay_s * 100) % (2 if self.trains else 4)):
                        continue
                    self.rank = int(rank)
                return pid
        return None

    def _is_main(self, pid: int) -> bool:
        if self.trains:
            return "-m shoal worker" in command(pid)
        return command(pid).endswith("lively.py") and name(pid) != DATA_WORKER


@contextlib.contextmanager
def started(hosts: Hosts, case: Case, folder: Path) -> Iterator[Job]:
    """The job of a case, with its files in `folder`; the same folder again goes on with a training."""
    on = ("localhost", "host1") if case.local else hosts.names[:2]
    known = ["--env", f"CHAOS_READY={folder}", "--env", f"CHAOS_PORT={PORTS + 300 * (hosts.number % 50)}"]
    known += ["-H", ",".join(on), "--ssh-config", str(hosts.ssh_config), "--silence", f"{SILENCE_S:g}"]
    if case.trains:
        words = ["train", *TRAINING, "-n", "1:2", "--max-restarts", "2", "--hang", f"{SILENCE_S:g}", *known]
        words += ["--run", str(folder / "run")]
    else:
        words = ["launch", "-n", "4", "-s", "1", "--nproc-per-node", "2", *known, "--log-dir", str(folder / "run")]
        words += ["--", sys.executable, "-S", str(HERE / "lively.py")]
    leash = Leash()
    with open(folder / "said", "ab") as said:
        process = subprocess.Popen(
            hosts.on_head([sys.executable, "-m", "shoal", *words]),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            env={**os.environ, **CPU, "CHAOS_READY": str(folder)},
            pass_fds=leash.descriptors,
            preexec_fn=leash.arm,
        )
    leash.started()
    try:
        yield Job(process, folder, trains=case.trains)
    finally:
        process.kill()
        process.wait()
        leash.drop()


def fresh_folder(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


def wait_for(true: Callable[[], Any], limit_s: float, what: str, process: subprocess.Popen[bytes] | None = None) -> Any:
    """What `true` gives. AssertionError that says `what` when it takes too long, or the process has ended before."""
    limit = time.monotonic() + limit_s
    while not (value := true()):
        assert time.monotonic() < limit, what
        assert process is None or process.poll() is None, f"{what}: the launcher ended before"
        time.sleep(0.01)
    return value
