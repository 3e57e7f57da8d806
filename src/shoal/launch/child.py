"""Child: one process of a job on this host, leader of a session of its own, on a leash."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from shoal.launch.leash import Leash
from shoal.launch.output import Output
from shoal.launch.report import CHANNEL

_PIPE = 1 << 20  # bytes; the most an unprivileged pipe can hold
CANNOT_START = 127  # as shells say it


class Child:
    """Starts a program and notes its end in `status`.

    The dead leader is not reaped before `close`: as long as it is there, its process group's number cannot go to
    strangers, so that killing the group never hits them.
    """

    def __init__(
        self, name: str, output: Output, tell: Callable[[bytes], None], prepare: Callable[[], None] = lambda: None
    ) -> None:
        """`tell` takes each line of its reports; `prepare` is called in the new process before it runs the program."""
        self._prepare = prepare
        self.name = name
        """worker 1"""
        self.output = output
        self.status: int | None = None
        """Exit code, or minus the signal that killed it; None while it runs."""
        self.was_killed = False
        """Whether `kill` ended it."""
        self.pidfd: int | None = None
        """Readable once the process has ended; None where the system has no such thing."""
        self.pipes: dict[int, Callable[[], bool]] = {}
        """Descriptor to read from -> what reads it, once, without blocking; False at its end."""
        self._process: subprocess.Popen[bytes] | None = None
        self._tell = tell
        self._report = b""
        self._leash: Leash | None = None

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], hand_over: Sequence[int] = (), workdir: str | None = None
    ) -> str | None:
        """Starts the program; `hand_over` are descriptors it gets beside its output and its report channel.

        What is wrong with a program that cannot be started; it has then ended like one that failed at once.
        """
        self.output.open()
        output, output_in = os.pipe()
        report, report_in = os.pipe()
        self._leash = Leash()
        fault = None
        try:
            self._process = subprocess.Popen(
                argv,
                env={**env, CHANNEL: str(report_in)},
                cwd=workdir,
                stdin=subprocess.DEVNULL,
                stdout=output_in,
                stderr=output_in,
                pass_fds=(report_in, *hand_over, *self._leash.descriptors),
                start_new_session=True,
                preexec_fn=self._before(self._leash),
            )
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            fault = _fault(argv, workdir, error)
            self.output.add(f"{fault}\n".encode())
            self.status = CANNOT_START
        finally:
            self._leash.started()
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
        return fault

    def _before(self, leash: Leash) -> Callable[[], None]:
        def before() -> None:
            self._prepare()
            if leash.arm:
                leash.arm()

        return before

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self.status is None

    def look(self) -> bool:
        """Notes the end of the process, if it has come; whether it is still running."""
        if self._process and self.running:
            self.status = _status(self._process)
            if self.status is not None:
                self._drain()
                self.output.finish()
        return self.running

    def tell(self, signum: int) -> bool:
        """Passes a signal on to the process itself; what it started is its own to tell. Whether it was there."""
        if self._process and self.look():
            os.kill(self._process.pid, signum)
            return True
        return False

    def kill(self) -> None:
        """Kills the process and all of its group."""
        if self._process:
            self.was_killed = self.look() or self.was_killed
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass

    def close(self) -> None:
        """Reads what is left in the pipes, and reaps."""
        self._drain()
        for descriptor in self.pipes:
            os.close(descriptor)
        self.pipes = {}
        self.output.close()
        if self._leash:
            self._leash.drop()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
        if self._process and not self.running:
            self._process.wait()

    def _drain(self) -> None:
        for read in self.pipes.values():
            left = _PIPE  # what escaped may still hold the pipe, so its end is not waited for
            while left > 0 and read():
                left -= 1 << 16

    def _read_output(self, descriptor: int) -> bool:
        data = _read(descriptor)
        if data:
            self.output.add(data)
        return data != b""

    def _read_report(self, descriptor: int) -> bool:
        data = _read(descriptor)
        *lines, self._report = (self._report + (data or b"")).split(b"\n")
        for line in lines:
            self._tell(line)
        return data != b""


def _fault(argv: Sequence[str], workdir: str | None, error: Exception) -> str:
    if workdir is not None and not os.path.isdir(workdir):
        return f"cannot start {argv[0]!r}: no folder {workdir} here; make it, or send it: --sync-dst-dir {workdir}"
    return f"cannot start {argv[0]!r}: {getattr(error, 'strerror', None) or error}"


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
