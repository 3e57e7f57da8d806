"""Warden: sees to it that nothing outlives an agent on this host. It is the agent's parent, and does nothing else.

Warden and agent hold each other's pipe and beat on it. If one ends or falls silent, the other kills it and everything
below. Both adopt orphans, so that whatever the job starts stays below one of them. The warden also watches the end of
the link itself: an agent that cannot heed it any more (stopped, or hung in the kernel) is killed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable

from shoal.launch.below import kill_below
from shoal.launch.group import Group
from shoal.launch.leash import adopt_orphans
from shoal.launch.link import BEAT_S

SILENCE, SILENCE_S = "SHOAL_SILENCE", 30.0
"""The variable that holds the seconds until nobody there counts as lost; and those seconds where nobody set it."""
HEED_S = 2.0
"""How long an agent may take to end once the link has."""
UNKILLABLE_S = 5.0
"""A killed process that is still there after this hangs in the kernel."""
STUCK_S = 0.5
"""How long to try once more what was found to hang."""


class Tie:
    """One end of what warden and agent hold of each other."""

    def __init__(self, reads: int, writes: int, *, learns: bool = False) -> None:
        """`learns`: takes the silence from the other end, as the warden does; both would never agree."""
        self.reads, self._writes = reads, writes
        os.set_blocking(reads, False)
        os.set_blocking(writes, False)
        self._learns = learns
        self.silence_s = _told_silence_s()
        self.is_over = False
        self.heard_at = time.monotonic()
        self._beat_at = 0.0

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self.heard_at

    @property
    def is_lost(self) -> bool:
        return self.is_over or self.silent_s > self.silence_s

    def beat(self) -> None:
        """To be called often. Carries the silence from which on the other end counts as lost."""
        now = time.monotonic()
        if now - self._beat_at >= BEAT_S:
            self._beat_at = now
            try:
                os.write(self._writes, f"{self.silence_s:g}\n".encode())
            except OSError:
                pass  # gone: the other pipe tells; or full, as its reader is stopped

    def read(self) -> None:
        """Takes in what the other end said."""
        try:
            data = os.read(self.reads, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self.is_over = True
            return
        self.heard_at = time.monotonic()
        if self._learns:
            self.silence_s = float(data.split()[-1])


def _told_silence_s() -> float:
    """As the launcher gave it along, so that it holds before its first word."""
    try:
        return float(os.environ.get(SILENCE, ""))
    except ValueError:
        return SILENCE_S


def end_warden(tie: Tie, warden: int) -> None:
    """Called by the agent at its end: a warden that does not answer any more would outlive it."""
    if tie.silent_s > tie.silence_s and os.getppid() == warden:
        os.kill(warden, signal.SIGKILL)


def guard(reads: int, writes: int, agent: Callable[[Tie, Group], int]) -> int:
    """Becomes the warden of a new process that runs `agent`; its exit code, once nothing is left of it.

    `reads` and `writes` are the descriptors of the agent's link.
    """
    try:
        os.setsid()
    except PermissionError:
        pass  # it leads a session already
    adopt_orphans()
    group = Group()
    to_agent, to_warden = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(to_agent[1])
        os.close(to_warden[0])
        os._exit(_as_agent(agent, Tie(to_agent[0], to_warden[1]), group))
    os.close(to_agent[0])
    os.close(to_warden[1])
    if writes != reads:
        os.dup2(os.open(os.devnull, os.O_WRONLY), writes)  # so that the launcher learns of the agent's end at once
    return _watch(pid, Tie(to_warden[0], to_agent[1], learns=True), reads, group)


def _as_agent(agent: Callable[[Tie, Group], int], tie: Tie, group: Group) -> int:
    limit_s = UNKILLABLE_S
    try:
        adopt_orphans()
        code = agent(tie, group)
        limit_s = STUCK_S
        return code
    except BaseException:
        import traceback

        traceback.print_exc()
        return 1
    finally:
        kill_below(limit_s=limit_s)  # whatever went wrong
        sys.stderr.flush()


def _watch(agent: int, tie: Tie, link: int, group: Group) -> int:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(signum, lambda number, frame: os.kill(agent, number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    poll = select.poll()
    poll.register(tie.reads, select.POLLIN)
    poll.register(link, getattr(select, "POLLRDHUP", 0))  # and, unasked, POLLHUP: the other end has closed it
    closed_at: float | None = None
    while not tie.is_lost:
        tie.beat()
        for descriptor, _ in poll.poll(1000 * BEAT_S):
            if descriptor == tie.reads:
                tie.read()
            elif closed_at is None:
                closed_at = time.monotonic()
                poll.unregister(link)
        if closed_at is not None and time.monotonic() - closed_at > HEED_S:
            break
    if not tie.is_over:
        os.kill(agent, signal.SIGKILL)  # not reaped yet: its number is still its own
    group.kill()
    stuck = kill_below(spare=(agent,), limit_s=STUCK_S if _left_by_itself(agent) else UNKILLABLE_S)
    group.close()
    if any(process.pid == agent for process in stuck):
        return 1
    _, status = os.waitpid(agent, os.WNOHANG) if not tie.is_over else os.waitpid(agent, 0)
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1


def _left_by_itself(agent: int) -> bool:
    """Whether the agent exited: then it has tried long enough to leave nothing below it."""
    limit = time.monotonic() + STUCK_S
    while (seen := os.waitid(os.P_PID, agent, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
        if time.monotonic() > limit:
            return False
        time.sleep(0.005)
    return seen.si_code == os.CLD_EXITED
