"""Stage: two hosts with bystanders, where one case of the chaos test is played after the other."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from bystanders import Bystanders
from cases import AGAIN_S, CLOSED_S, FATAL, SILENCE_S, STOPPING, UNNOTICED, Case, Seen
from cluster import Hosts
from command import shoal
from jobs import TRAINING, Job, fresh_folder, started, wait_for
from outcome import what_came
from processes import describe, family, identity, lives, name

READY_S = 90.0
END_S = 120.0
"""What a training that goes on may take to its end."""


class Stage:
    """Plays cases. Nothing of the last one is in the way of the next: its ports must be free at once."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self._bystanders = Bystanders(hosts)
        self._expected: object = None
        """What an undisturbed training comes to."""

    def play(self, case: Case) -> Seen:
        seen = Seen(case)
        self.hosts.mend()
        self._bystanders.place()
        before = self._everybody()
        folder = fresh_folder(self.folder)
        with started(self.hosts, case, folder) as job:
            try:
                began = self._strike(case, job)
                (self._see_training if case.trains else self._see_script)(case, job, seen, began)
            except AssertionError as error:
                seen.faults.append(str(error))
            self._check_rest(job, before, seen)
        if case.trains:
            self._check_training(case, folder, seen)
        return seen

    def close(self) -> None:
        self._bystanders.close()

    def _strike(self, case: Case, job: Job) -> float:
        """When it was struck."""
        if not case.early:
            wait_for(job.is_ready, READY_S, f"the job was not ready after {READY_S:g} s", job.process)
        job.start_s = time.monotonic() - job.began
        victim: int | None = None
        if case.target not in ("cable", "host"):
            victim = wait_for(lambda: job.find(case), READY_S, f"no {case.target} to strike", job.process)
        time.sleep(case.delay_s * (0.5 if case.early else 1.0))
        began = time.monotonic()
        if case.target == "cable":
            self.hosts.unplug("host1")
        elif case.target == "host":
            self.hosts.off("host1")
        elif victim is not None:
            with contextlib.suppress(ProcessLookupError):  # early, and gone already
                os.kill(victim, getattr(signal, f"SIG{case.how}"))
        return began

    def _see_script(self, case: Case, job: Job, seen: Seen, began: float) -> None:
        if case.event in UNNOTICED:
            time.sleep(SILENCE_S + 1.5)
            if job.process.poll() is not None:
                seen.faults.append(f"ended although nothing of the launcher's own was struck: {job.said()[-500:]}")
            began = time.monotonic()
            job.process.kill()
        self._see_end(case, job, seen, began)
        if seen.code == 0:
            seen.faults.append("ended with 0, as if all were well")
        if case.event == ("worker", "KILL") and not case.early and f"worker {job.rank} " not in job.said():
            seen.faults.append(f"worker {job.rank} is not named: {job.said()[-500:]}")

    def _see_end(self, case: Case, job: Job, seen: Seen, began: float) -> None:
        """Nothing is left in time, and the launcher ends."""
        spared = {job.process.pid} if case.event == ("launcher", "STOP") else set()
        if spared and not self._left(job, spared):
            job.process.kill()  # struck before it had anybody to leave behind
        limit = began + case.limit_s
        while (left := self._left(job, spared)) and time.monotonic() < limit:
            time.sleep(0.01)
        seen.seconds = time.monotonic() - began
        if left:
            seen.faults.append(f"alive after {case.limit_s:g} s: {', '.join(map(describe, left[:6]))}")
        if spared:
            job.process.send_signal(signal.SIGCONT)
        try:  # a launcher that was stopped finds its hosts lost, and has a training go on
            seen.code = job.process.wait(END_S if case.trains and spared else CLOSED_S)
        except subprocess.TimeoutExpired:
            seen.faults.append(f"the launcher did not end: {job.said()[-500:]}")

    def _see_training(self, case: Case, job: Job, seen: Seen, began: float) -> None:
        if case.event in FATAL | STOPPING:
            self._see_end(case, job, seen, began)
            if case.event in STOPPING and seen.code != 75:
                seen.faults.append(f"was not stopped in good order: {job.said()[-500:]}")
            return
        limit_s = case.limit_s + max(0.0, 2 * job.start_s - AGAIN_S)
        wait_for(lambda: "Resumed" in job.said(), limit_s, f"did not go on within {limit_s:.0f} s", job.process)
        seen.seconds = time.monotonic() - began
        seen.code = job.process.wait(END_S)
        if seen.code != 0:
            seen.faults.append("went on, but not to its end")

    def _check_training(self, case: Case, folder: Path, seen: Seen) -> None:
        """The same command again goes on with what has not come to its end; the bits are an undisturbed training's."""
        self.hosts.mend()
        if seen.code != 0:
            with started(self.hosts, case, folder) as job:
                if job.process.wait(END_S) != 0:
                    seen.faults.append(f"could not be gone on with: {job.said()[-500:]}")
                    return
        if what_came(folder / "run") != self._undisturbed():
            seen.faults.append("trained another model than an undisturbed training")

    def _undisturbed(self) -> object:
        if self._expected is None:
            run = fresh_folder(self.folder) / "run"
            done = shoal(self.hosts, "train", *TRAINING, "-n", "2", "--run", run)
            assert done.returncode == 0, done.stderr
            self._expected = what_came(run)
        return self._expected

    def _left(self, job: Job, spared: set[int]) -> list[int]:
        """Of the job's own, wherever: tagged, or the launcher and what is below it."""
        found = {*job.tagged(), *family(job.process.pid)}
        return [pid for pid in found if pid not in spared and lives(pid)]

    def _check_rest(self, job: Job, before: set[tuple[int, str]], seen: Seen) -> None:
        seen.said = job.said()
        job.process.kill()  # only what is wrong still runs; it is in the faults already
        job.process.wait()
        # sshd's own processes end a moment after what they ran; without a cable they wait as long as TCP does.
        limit = time.monotonic() + 1.0
        while (new := self._new_since(before)) and time.monotonic() < limit:
            time.sleep(0.02)
        if new:
            seen.faults.append(f"left on the hosts: {', '.join(map(describe, new[:6]))}")
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        seen.faults += self._bystanders.faults(off="host1" if seen.case.target == "host" else None)

    def _everybody(self) -> set[tuple[int, str]]:
        """All processes of the hosts."""
        on = [host for host in self.hosts.names if self.hosts.is_on(host)]
        return {(pid, identity(pid)) for host in on for pid in self.hosts.pids(host)}

    def _new_since(self, before: set[tuple[int, str]]) -> list[int]:
        """What is on the hosts now and was not `before`, but for sshd."""
        return sorted(pid for pid, _ in self._everybody() - before if lives(pid) and not name(pid).startswith("sshd"))
