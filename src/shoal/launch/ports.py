"""Ports: listening sockets that are taken once and handed on, so that nobody else can take them in between."""

from __future__ import annotations

import socket

from shoal.base.errors import UsageError


def listen(host: str, ports: range | None) -> socket.socket:
    """A TCP socket listening on `host`, on the first free port of `ports`, or on any free one."""
    for port in (0,) if ports is None else ports:
        try:
            return socket.create_server((host, port), backlog=1024)
        except OSError:
            if ports is None:
                raise
    assert ports is not None
    raise UsageError(f"no free port in {ports.start}-{ports.stop - 1} on {host}; name another range with --ports A-B")
