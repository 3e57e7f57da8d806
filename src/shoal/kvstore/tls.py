"""TLS 1.3 between hosts, after the handshake: both ends show the job's one certificate, and trust that one only.

Strangers never reach it: they must hold the secret first. On one host it would only cost time, so there is none.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.base.errors import UsageError, shown_path
from shoal.launch.certificate import CERTIFICATE_FILE, PLAIN, fresh_certificate

_TLS, _PLAIN = b"T", b"P"


def make_certificate(path: Path, days: int = 30) -> None:
    """A fresh certificate and its key in one file that only its owner can read."""
    made = fresh_certificate(days)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, made)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Cover:
    """What this process does about connections to other hosts."""

    certificate: Path | None = None
    plain: bool = False
    """They need not be encrypted."""

    @staticmethod
    def from_env(env: Mapping[str, str] = os.environ) -> Cover:
        name = env.get(CERTIFICATE_FILE)
        return Cover(Path(name) if name else None, env.get(PLAIN) == "1")

    def greet(self, connection: socket.socket) -> socket.socket:
        """The server's side. UsageError when the other end is on another host and nothing covers it."""
        if _same_host(connection):
            connection.sendall(_PLAIN)
            return connection
        if self.certificate is None and not self.plain:
            raise UsageError(f"a worker on {connection.getpeername()[0]}, another host: {_NEEDED}")
        if self.plain:
            connection.sendall(_PLAIN)
            return connection
        connection.sendall(_TLS)
        return self._wrapped(connection, server=True)

    def follow(self, connection: socket.socket) -> socket.socket:
        """The worker's side; whoever sits between cannot talk it out of TLS."""
        word = connection.recv(1)
        if word == _TLS:
            if self.certificate is None:
                raise UsageError(f"the server at {connection.getpeername()[0]} wants TLS: set {CERTIFICATE_FILE}")
            return self._wrapped(connection, server=False)
        if word == _PLAIN and (self.plain or _same_host(connection)):
            return connection
        if not word:
            raise EOFError
        raise UsageError(f"the server at {connection.getpeername()[0]} is on another host: {_NEEDED}")

    def _wrapped(self, connection: socket.socket, *, server: bool) -> socket.socket:
        assert self.certificate is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the one certificate that is trusted is the job's
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self.certificate)
            context.load_verify_locations(self.certificate)
        except OSError as error:
            raise UsageError(f"certificate {shown_path(self.certificate)}: {error}") from None
        connection.settimeout(10.0)
        wrapped = context.wrap_socket(connection, server_side=server)
        wrapped.settimeout(None)
        return wrapped


_NEEDED = (
    f"encryption needs the job's certificate ({CERTIFICATE_FILE}=FILE, the same everywhere); "
    f"on a network that all may listen to, say so with {PLAIN}=1"
)


def _same_host(connection: socket.socket) -> bool:
    """Both ends have the same address."""
    return connection.getpeername()[0] == connection.getsockname()[0]
