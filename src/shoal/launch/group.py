"""Group: the job's processes on this host as a control group of the kernel, killed by one write however fast they fork.

An extra layer, for where such a group may be made (as the administrator, or in a delegated one); nothing rests on it.
"""

from __future__ import annotations

import errno
import os
import time

_PREFIX = "shoal-"
_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_EMPTY_S = 0.5
"""How long the killed may take to leave it: they close their files before that."""


class Group:
    """Names a fresh group below this process's own; made by `make`, of use to all who know the name."""

    def __init__(self) -> None:
        self._folder = _fresh()
        self._procs = -1

    def make(self) -> None:
        """Does nothing where that is not allowed."""
        if self._folder is None:
            return
        try:
            _sweep(os.path.dirname(self._folder))
            os.mkdir(self._folder)
            if os.path.exists(f"{self._folder}/cgroup.kill"):  # since Linux 5.14
                self._procs = os.open(f"{self._folder}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            self.close()

    def enter(self) -> None:
        """Moves the calling process, and what it is going to start, into the group. For a child before exec."""
        if self._procs >= 0:
            try:
                os.write(self._procs, b"0")
            except OSError:
                pass

    def kill(self) -> None:
        """SIGKILL to all in it."""
        if self._folder is not None:
            try:
                with open(f"{self._folder}/cgroup.kill", "w") as file:
                    file.write("1")
            except OSError:
                pass  # never made, or gone already

    def close(self) -> None:
        """Removes the group, as soon as it is empty."""
        if self._procs >= 0:
            os.close(self._procs)
            self._procs = -1
        limit = time.monotonic() + _EMPTY_S
        while self._folder is not None:
            try:
                os.rmdir(self._folder)
                return
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > limit:
                    return  # never made, or gone already; or something in it hangs in the kernel
                time.sleep(0.005)


def _fresh() -> str | None:
    """A name that nobody has, below this process's own group of cgroup v2; None without one."""
    try:
        with open("/proc/self/cgroup") as file:
            own = next((line.strip()[3:] for line in file if line.startswith("0::")), None)
    except OSError:
        return None
    for root in _ROOTS:
        if own is not None and ".." not in own and os.path.exists(f"{root}{own}/cgroup.procs"):
            return f"{root}{own.rstrip('/')}/{_PREFIX}{os.urandom(8).hex()}"
    return None


def _sweep(folder: str) -> None:
    """Removes empty groups whose guardians were killed. One that is about to be used only loses this extra layer."""
    for name in os.listdir(folder):
        if name.startswith(_PREFIX):
            try:
                os.rmdir(f"{folder}/{name}")
            except OSError:
                pass  # in use
