"""Child: one process of a job on this host, leader of a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from shoal.launch.ending import Ending
from shoal.launch.job import Command
from shoal.launch.output import Output
from shoal.launch.report import CHANNEL, Report

_PIPE = 1 << 20  # bytes; the most an unprivileged pipe can hold
_CANNOT_START = 127  # as shells say it


class Child:
    """Starts a Command and notes what becomes of it in `ending`.

    The dead leader is not reaped before `close`: as long as it is there, its process group's number cannot go to
    strangers, so that killing the group never hits them.
    """

    def __init__(self, command: Command, show: Callable[[str], None]) -> None:
        self.command = command
        self.ending = Ending(command.name, command.log, expendable=command.expendable)
        self.pidfd: int | None = None
        """Readable once the process has ended; None where the system has no such thing."""
        self._process: subprocess.Popen[bytes] | None = None
        self._output = Output(command.log, show)
        self._report = b""
        self.pipes: dict[int, Callable[[], bool]] = {}
        """Descriptor to read from -> what reads it, once, without blocking; False at its end."""

    def start(self, env: Mapping[str, str], hand_over: Sequence[int] = ()) -> None:
        """Starts the process; `hand_over` are descriptors it gets beside its output and its report channel.

        A program that cannot be started has ended like one that failed at once: `ending` says so.
        """
        self._output.open()
        self.ending.started = True
        output, output_in = os.pipe()
        report, report_in = os.pipe()
        try:
            self._process = subprocess.Popen(
                self.command.argv,
                env={**env, CHANNEL: str(report_in)},
                stdin=subprocess.DEVNULL,
                stdout=output_in,
                stderr=output_in,
                pass_fds=(report_in, *hand_over),
                start_new_session=True,
            )
        except OSError as error:
            message = f"cannot start {self.command.argv[0]!r}: {error.strerror}"
            self._output.add(f"{message}\n".encode())
            self.ending.reported(Report(message))
            self.ending.ended(_CANNOT_START)
        finally:
            os.close(output_in)
            os.close(report_in)
            os.set_blocking(output, False)
            os.set_blocking(report, False)
            self.pipes = {output: lambda: self._read_output(output), report: lambda: self._read_report(report)}
        if self._process:
            try:
                self.pidfd = os.pidfd_open(self._process.pid)
            except (AttributeError, OSError):
                self.pidfd = None

    @property
    def running(self) -> bool:
        return self._process is not None and self.ending.status is None

    def look(self) -> bool:
        """Notes the end of the process, if it has come; whether it is still running."""
        if self._process and self.running:
            status = _status(self._process)
            if status is not None:
                self.ending.ended(status)
        return self.running

    def tell(self, signum: int) -> None:
        """Passes a signal on to the process itself; what it started is its own to tell."""
        if self._process and self.look():
            self.ending.told.add(signum)
            os.kill(self._process.pid, signum)

    def kill(self) -> None:
        """Kills the process and all of its group."""
        if self._process:
            self.ending.killed = self.look() or self.ending.killed
            self._signal_group(signal.SIGKILL)

    def close(self) -> None:
        """Reads what is left in the pipes, and reaps."""
        for descriptor, read in self.pipes.items():
            # What escaped the group may still hold the pipe, so its end is not waited for.
            left = _PIPE
            while left > 0 and read():
                left -= 1 << 16
            os.close(descriptor)
        self.pipes = {}
        self._output.close()
        self.ending.tail = tuple(self._output.tail)
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
        if self._process and not self.running:
            self._process.wait()

    @property
    def gone(self) -> bool:
        """Whether nothing is left of its group, once the process itself is reaped; zombies of a lazy init count."""
        return self._process is None or not self._signal_group(0)

    def _signal_group(self, signum: int) -> bool:
        assert self._process is not None
        try:
            os.killpg(self._process.pid, signum)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _read_output(self, descriptor: int) -> bool:
        data = _read(descriptor)
        if data:
            self._output.add(data)
        return data != b""

    def _read_report(self, descriptor: int) -> bool:
        data = _read(descriptor)
        *lines, self._report = (self._report + (data or b"")).split(b"\n")
        for line in lines:
            if report := Report.parse(line):
                self.ending.reported(report)
        return data != b""


def _read(descriptor: int) -> bytes | None:
    """Some bytes; none at the end; None when there are none now."""
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return None


def _status(process: subprocess.Popen[bytes]) -> int | None:
    if not hasattr(os, "waitid"):
        return process.poll()
    seen = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if seen is None:
        return None
    return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status
