"""Line: the way to the agent of one host. It carries a link, and knows why it broke."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence

from shoal.launch.leash import Leash
from shoal.launch.link import Link

_LONGEST = 1 << 14
"""Bytes of complaints that are kept."""
_LAST_WORDS_S = 0.3
_END_S = 5.0
"""How long a program may take to end once its line is closed."""

Reason = Callable[[int | None, str], str]
"""Exit code (None: no answer in time) and what was said on stderr -> why the line broke, in one line."""


class Line:
    """A link that is there already, such as an accepted connection."""

    is_local = False
    """Whether the agent is on this host and sees what is seen here."""
    is_own = False
    """Whether a person started the agent there, in an environment and a working directory that are to stay."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.errors: int | None = None
        """Descriptor of complaints to read from."""

    def complain(self) -> bool:
        """Reads complaints; False at their end."""
        return False

    def why(self) -> str | None:
        """Why the line broke or gives no answer, in one line; None where it does not know."""
        return None

    def last_words(self) -> str:
        """What is known of why it broke after the agent had spoken: the end of a sentence, or nothing."""
        return ""

    def cut(self) -> None:
        """The other end is lost, or does not matter any more."""
        self.link.cut()

    def close(self) -> None:
        """The other end has been told to end; nothing is left of the line here afterwards."""
        self.link.close()


class Program(Line):
    """A program with the link on its stdin and stdout: the agent itself, or one that leads to it."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        reason: Reason,
        pass_fds: Sequence[int] = (),
        *,
        is_agent: bool = False,
    ) -> None:
        """OSError where the program cannot be started. Start it from the main thread.

        is_agent: it is the agent itself, on this host. It needs no leash: it must outlive this process, to end what is
        below it.
        """
        self.is_local = is_agent
        self._reason = reason
        self._said = b""
        leash = None if is_agent else Leash()
        try:
            self._process = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(*(leash.descriptors if leash else ()), *pass_fds),
                start_new_session=True,
                preexec_fn=leash.arm if leash else None,
            )
        except BaseException:
            if leash:
                leash.drop()
            raise
        if leash:
            leash.started()
        self._leash = leash
        assert self._process.stdin and self._process.stdout and self._process.stderr
        super().__init__(Link(os.dup(self._process.stdout.fileno()), os.dup(self._process.stdin.fileno()), noisy=True))
        self._process.stdin.close()
        self._process.stdout.close()
        self.errors = os.dup(self._process.stderr.fileno())
        self._process.stderr.close()
        os.set_blocking(self.errors, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def complain(self) -> bool:
        assert self.errors is not None
        try:
            data = os.read(self.errors, 1 << 14)
        except BlockingIOError:
            return True
        self._said = (self._said + data)[-_LONGEST:]
        return data != b""

    def why(self) -> str | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS_S)
        for _ in range(_LONGEST >> 10):  # what is there; its end need not come
            if not self.complain():
                break
        return self._reason(self._process.poll(), self._said.decode(errors="replace"))

    def cut(self) -> None:
        super().cut()
        if not self.is_local:  # the agent ends by itself; the way to it need not wait for anything
            self._process.kill()

    def close(self) -> None:
        if self.link.reads >= 0:
            super().close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LAST_WORDS_S)
        if self._leash:
            self._leash.drop()
        if self.errors is not None:
            os.close(self.errors)
            self.errors = None
