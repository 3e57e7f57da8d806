"""Ports: sockets that are taken once and handed on or held, so that nobody else can take their ports in between."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection

from shoal.base.errors import UsageError


def listen(host: str, ports: range | None, taken: Collection[int] = ()) -> socket.socket:
    """A TCP socket listening on `host`, on the first free port of `ports` but those `taken`, or on any free one."""
    return _first(
        host, ports, taken, lambda port: socket.create_server((host, port), family=_family(host), backlog=1024)
    )


def reserve(host: str, ports: range | None, taken: Collection[int] = ()) -> socket.socket:
    """A bound socket that nobody listens on: it keeps its port from strangers until a program of ours takes it.

    That program sets SO_REUSEADDR, as torch, Paddle and MXNet do.
    """

    def bind(port: int) -> socket.socket:
        held = socket.socket(_family(host), socket.SOCK_STREAM)
        try:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((host, port))
        except OSError:
            held.close()
            raise
        return held

    return _first(host, ports, taken, bind)


def _first(
    host: str, ports: range | None, taken: Collection[int], take: Callable[[int], socket.socket]
) -> socket.socket:
    for port in (0,) if ports is None else ports:
        if port in taken:
            continue
        try:
            return take(port)
        except OSError:
            if ports is None:
                raise
    assert ports is not None
    raise UsageError(f"no free port in {ports.start}-{ports.stop - 1} on {host}; name another range with --ports A-B")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
