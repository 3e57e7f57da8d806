"""Interface: by which of its addresses the other hosts of a job reach this one, and why that one was chosen."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass

_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Chosen:
    """An address of this host, and the interface that has it."""

    address: str
    interface: str
    """Empty where no interface of this host has the address (behind an address translation), or none can be asked."""
    why: str
    """For people."""

    @property
    def is_loopback(self) -> bool:
        return self.address.startswith("127.") or self.address == "::1"

    @property
    def text(self) -> str:
        return f"{self.address} ({self.interface or 'on no interface of that host'}), for {self.why}"


def choose_address(peer: str | None = None, env: Mapping[str, str] = os.environ) -> Chosen:
    """The address where ssh came in, if it did; else the one from which `peer` is reached; else the loopback.

    `peer`: a name or address of another host. Nothing is sent.
    """
    came = env.get("SSH_CONNECTION", "").split()
    if peer is None and len(came) == 4:
        return Chosen(came[2], interface_of(came[2]), f"ssh from {came[0]} came in on it")
    if peer is not None and (address := address_towards(peer)):
        return Chosen(address, interface_of(address), f"the route to {peer} leaves by it")
    why = "no other host takes part" if peer is None else f"there is no route to {peer}"
    return Chosen("127.0.0.1", interface_of("127.0.0.1"), why)


def address_towards(peer: str) -> str | None:
    """The own address on the route to `peer`; None without one."""
    try:
        found = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # of a datagram socket: only looks the route up
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def interface_of(address: str) -> str:
    """The interface that has `address`; empty where none has, or the system does not say."""
    plain = address.partition("%")[0]
    if plain.startswith("127."):
        plain = "127.0.0.1"  # all of them are the loopback's
    return next((name for name, addresses in interfaces().items() if plain in addresses), "")


def interfaces() -> dict[str, list[str]]:
    """Interface -> its addresses; empty where they cannot be asked."""
    if not sys.platform.startswith("linux"):
        return {}
    import fcntl

    found: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in found:
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[name].append(socket.inet_ntoa(answer[20:24]))
            except OSError:
                continue  # it has no IPv4 address
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            for line in file:
                digits, *_, name = line.split()
                found.setdefault(name, []).append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    except (OSError, ValueError):
        pass
    return found
