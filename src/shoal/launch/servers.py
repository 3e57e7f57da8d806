"""Servers: what parameter servers need of the agent: ports that outlive them, and a secret for the whole job."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence

from shoal.launch.handshake import SECRET_FILE, make_secret
from shoal.launch.job import Command
from shoal.launch.ports import listen

ADDRESSES, NUM_WORKERS = "SHOAL_SERVERS", "SHOAL_NUM_WORKERS"


def server_words(num_workers: int, num_servers: int) -> dict[str, str]:
    """Variables of every process of a job with servers; placeholders are filled by `Servers`."""
    if not num_servers:
        return {}
    return {ADDRESSES: "{servers}", NUM_WORKERS: str(num_workers), SECRET_FILE: "{secret_file}"}


class Servers:
    """The listening sockets stay here: a server that is started again finds its port, and those who call meanwhile
    wait in its queue instead of being refused."""

    def __init__(self, commands: Sequence[Command], host: str, ports: range | None) -> None:
        self._host = host
        self._listening: dict[int, socket.socket] = {}
        self._secret: str | None = None
        try:
            for command in commands:
                if command.role == "server":
                    self._listening[command.rank] = listen(host, ports)
            if self._listening:
                handle, self._secret = tempfile.mkstemp(prefix="shoal-secret-")  # only its owner can read it
                with open(handle, "wb") as file:
                    file.write(make_secret())
        except BaseException:
            self.close()
            raise

    def fill(self, value: str) -> str:
        """A variable's value without placeholders."""
        addresses = [f"{self._host}:{listening.getsockname()[1]}" for _, listening in sorted(self._listening.items())]
        return value.replace("{servers}", ",".join(addresses)).replace("{secret_file}", self._secret or "")

    def hand_over(self, command: Command) -> dict[str, int]:
        """Descriptors that a process inherits, by variable."""
        if command.role != "server":
            return {}
        return {"SHOAL_LISTEN_FD": self._listening[command.rank].fileno()}

    def close(self) -> None:
        for listening in self._listening.values():
            listening.close()
        if self._secret is not None and os.path.exists(self._secret):
            os.unlink(self._secret)
