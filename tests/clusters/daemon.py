"""A daemon that lives as long as the test that needs it, and not a moment longer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shoal.launch.leash import Leash


@contextmanager
def daemon(argv: Sequence[str], log: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `argv` in the foreground of a session of its own, on a leash."""
    leash = Leash()
    with open(log, "ab") as said:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            pass_fds=leash.descriptors,
            preexec_fn=leash.arm,
            env={**os.environ, **env},
        )
    leash.started()
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        leash.drop()
