"""Engine: the program of a cluster's engine that starts the agents, such as mpirun or srun, on a leash of ours."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.base.errors import ShoalError
from shoal.launch.leash import Leash

_END_S = 5.0
"""How long it may take to end once its agents have."""
_HURRY_S = 1.0
"""The same, where it is in the way, and again once it was asked to."""
_LAST_WORDS_S = 1.0
_SHOWN = 8
"""Lines of what it said last that people see."""


class Engine:
    """One running program. What it says goes to a file; its last words are for people."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        """ShoalError where it cannot be started. Start it from the main thread."""
        self.name = log.stem
        self.log = log
        leash = Leash()
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            self._start = log.stat().st_size if log.exists() else 0
            with open(log, "ab") as said:
                self._process = subprocess.Popen(
                    argv,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    pass_fds=leash.descriptors,
                    start_new_session=True,  # Ctrl-C is for the launcher alone
                    preexec_fn=leash.arm,
                )
        except OSError as error:
            leash.drop()
            raise ShoalError(f"cannot start {argv[0]}: {error.strerror} ({error.filename})") from None
        leash.started()
        self._leash = leash

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def last_words(self) -> str:
        """`; mpirun ended (exit 1): …` where it has ended or does so in this moment; else nothing."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS_S)
        return f"; {self.verdict()}" if self.has_ended else ""

    def verdict(self) -> str:
        """How it ended, in its own words."""
        code = self._process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended (exit {code})"
        said = self.said()
        return f"{self.name} {how}" + (":\n" + "\n".join(f"  {line}" for line in said) if said else " without a word")

    def said(self) -> list[str]:
        """Its last lines, without frames and empty ones."""
        with contextlib.suppress(OSError), open(self.log, "rb") as file:
            file.seek(self._start)
            lines = file.read().decode(errors="replace").splitlines()
            return [line.rstrip() for line in lines if any(letter.isalnum() for letter in line)][-_SHOWN:]
        return []

    def end(self, *, hurry: bool = False) -> None:
        """Waits for its end, which its agents' end brings about, and sees to it. `hurry`: not for long."""
        for ask, wait_s in (
            (lambda: None, _HURRY_S if hurry else _END_S),
            (self._process.terminate, _HURRY_S),
            (self._process.kill, _END_S),
        ):
            ask()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
                break
        self._leash.drop()
