"""A server as a process: its memory is its own, and it can be killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from servers import SECRET

from shoal.launch.handshake import SECRET_FILE


class ServerProcess:
    """`shoal server` by hand. `lines`: what it says."""

    def __init__(self, folder: Path, workers: int, *args: str, address: str = "127.0.0.1:0") -> None:
        secret = folder / "secret"
        if not secret.exists():
            secret.touch(0o600)
            secret.write_bytes(SECRET)
        command = [sys.executable, "-m", "shoal", "server", "--listen", address, "-n", str(workers), *args]
        env = {**os.environ, SECRET_FILE: str(secret), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        match = re.search(r"listens at (\S+)", first)
        while match is None and first:
            self.lines.append(first.strip())
            first = self.process.stdout.readline()
            match = re.search(r"listens at (\S+)", first)
        assert match is not None, self.lines
        self.address = match[1]
        self.host, self.port = self.address.split(":")[0], int(self.address.split(":")[1])
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def rss_mb(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) / 1024
        return 0.0

    def says(self, count: int, *, since: int, limit_s: float = 10.0) -> list[str]:
        """The lines after the first `since`, once there are `count`; a moment later, so that one too many shows."""
        until = time.monotonic() + limit_s
        while len(self.lines) < since + count and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.1)
        return self.lines[since:]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
