"""Handshake: both ends of a TCP connection prove that they hold the job's secret, without ever sending it.

    who listens                                          who connects
    MAGIC, 32 random bytes S                        ->
                                                    <-   MAGIC, 32 random bytes C, HMAC("connects", purpose, S, C)
    HMAC("listens", purpose, S, C)                  ->

HMAC-SHA256 over messages of fixed length: no length is ever read from the wire, both ends choose fresh numbers (nothing
can be replayed), and the two answers differ (nothing can be reflected). What follows on the connection is as safe from
listening and meddling as the network it crosses; docs/security.md says so.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import selectors
import socket
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.base.errors import ShoalError, UsageError, shown_path

MAGIC = b"SHOAL/1\n"
SECRET_FILE = "SHOAL_SECRET_FILE"
"""The variable that names the file with the secret."""
_NONCE = 32
_MAC = 32
_SHORTEST, _MOST = 16, 4096
"""Bytes of a secret."""


class HandshakeError(ShoalError):
    """The other end does not hold the secret, or is no Shoal at all."""


class Unreachable(HandshakeError):
    """Nobody answers there; later, somebody may."""


class NoSuchHost(HandshakeError):
    """Nobody knows the name; where names come up with their hosts, somebody may later."""


def read_secret(path: str | Path | None = None, env: Mapping[str, str] = os.environ) -> bytes:
    """The secret from a file that only its owner can read: `path`, else the one that SHOAL_SECRET_FILE names."""
    name = path or env.get(SECRET_FILE)
    make = "make one with: (umask 077; openssl rand -hex 32 > FILE), the same on every node"
    if not name:
        raise UsageError(f"no secret: set {SECRET_FILE}=FILE; {make}")
    shown = shown_path(name)
    try:
        # Not blocking: a pipe that nobody writes to must not hold us up before it is refused.
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"secret {shown}: cannot be read ({error.strerror}); {make}") from None
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise UsageError(f"secret {shown}: is no file; {make}")
        if info.st_mode & 0o077:
            raise UsageError(f"secret {shown}: others can read or write it; run: chmod 600 {shown}")
        if info.st_uid not in (os.getuid(), 0):
            raise UsageError(f"secret {shown}: belongs to another user; {make}")
        secret = os.read(handle, _MOST + 1).strip()
    finally:
        os.close(handle)
    if not _SHORTEST <= len(secret) <= _MOST:
        raise UsageError(f"secret {shown}: has {len(secret)} bytes, expected {_SHORTEST} to {_MOST}; {make}")
    return secret


def connect(address: tuple[str, int], secret: bytes, purpose: str, *, limit_s: float = 10.0) -> socket.socket:
    """A connection to `address`, whose other end has proved itself. HandshakeError says why there is none.

    `purpose` is what the connection is for: an answer given for one purpose is worth nothing for another.
    """
    limit = time.monotonic() + limit_s
    where = f"{address[0]}:{address[1]}"
    try:
        connection = socket.create_connection(address, timeout=limit_s)
    except socket.gaierror as error:
        raise NoSuchHost(f"{where}: no host of that name ({error.strerror})") from None
    except OSError as error:
        raise Unreachable(f"{where}: no connection ({error.strerror or error})") from None
    try:
        greeting = _read_exactly(connection, len(MAGIC) + _NONCE, limit, where)
        if not greeting.startswith(MAGIC):
            raise HandshakeError(f"{where}: what listens there is no Shoal of this version")
        theirs, ours = greeting[len(MAGIC) :], secrets.token_bytes(_NONCE)
        connection.settimeout(max(0.01, limit - time.monotonic()))
        connection.sendall(MAGIC + ours + _mac(secret, b"connects", purpose, theirs, ours))
        proof = _read_exactly(connection, _MAC, limit, where)
        if not hmac.compare_digest(proof, _mac(secret, b"listens", purpose, theirs, ours)):
            raise HandshakeError(f"{where}: what listens there does not hold the job's secret")
        connection.settimeout(None)
        return connection
    except OSError as error:
        connection.close()
        raise HandshakeError(f"{where}: the connection broke in the handshake ({error.strerror or error})") from None
    except BaseException:
        connection.close()
        raise


class Door:
    """Lets those in who hold the secret. Strangers are few at a time, and have little time.

    Takes `listening` over and closes it. `fileno` becomes readable when `accept` has something to do.
    """

    def __init__(
        self, listening: socket.socket, secret: bytes, purpose: str, *, most: int = 64, limit_s: float = 5.0
    ) -> None:
        """`most`: connections that have not proved themselves yet; a further one takes the place of the oldest, for
        an honest handshake takes milliseconds. `limit_s`: the time each of them has."""
        self._listening = listening
        self._secret, self._purpose = secret, purpose
        self._most, self._limit_s = most, limit_s
        self._guests: dict[socket.socket, _Guest] = {}
        self._selector = selectors.DefaultSelector()
        self._listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ)
        self.refused = 0
        """Connections that did not prove themselves, so far."""

    def fileno(self) -> int:
        return self._selector.fileno()  # type: ignore[attr-defined]  # epoll and kqueue have one

    def accept(self, timeout_s: float = 0.0) -> tuple[socket.socket, tuple[str, int]] | None:
        """The next connection that proved itself, and where it comes from; None when none did within `timeout_s`."""
        until = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            for guest in [guest for guest in self._guests.values() if now >= guest.limit]:
                self._refuse(guest)
            nearest = min([until, *(guest.limit for guest in self._guests.values())])
            for key, _ in self._selector.select(max(0.0, nearest - now)):
                if key.fileobj is self._listening:
                    self._greet()
                elif (guest := self._guests.get(key.fileobj)) and self._listen_to(guest):  # type: ignore[arg-type]
                    return guest.connection, guest.address
            if time.monotonic() >= until:
                return None

    def close(self) -> None:
        for guest in list(self._guests.values()):
            self._drop(guest)
            guest.connection.close()
        self._selector.close()
        self._listening.close()

    def _greet(self) -> None:
        try:
            connection, address = self._listening.accept()
        except OSError:
            return  # it went away, or there is no descriptor left for it
        guest = _Guest(connection, address[:2], time.monotonic() + self._limit_s, secrets.token_bytes(_NONCE))
        try:
            connection.setblocking(False)
            if connection.send(MAGIC + guest.nonce) != len(MAGIC) + _NONCE:
                raise BlockingIOError
        except OSError:
            self.refused += 1
            connection.close()
            return
        if len(self._guests) >= self._most:
            self._refuse(next(iter(self._guests.values())))
        self._guests[connection] = guest
        self._selector.register(connection, selectors.EVENT_READ)

    def _listen_to(self, guest: _Guest) -> bool:
        """Takes what the guest says; whether it has proved itself with it."""
        want = len(MAGIC) + _NONCE + _MAC
        try:
            data = guest.connection.recv(want - len(guest.said))
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        guest.said += data
        said = guest.said
        if not data or not MAGIC.startswith(said[: len(MAGIC)]):
            self._refuse(guest)
            return False
        if len(said) < want:
            return False
        theirs, proof = said[len(MAGIC) : -_MAC], said[-_MAC:]
        if not hmac.compare_digest(proof, _mac(self._secret, b"connects", self._purpose, guest.nonce, theirs)):
            self._refuse(guest)
            return False
        self._drop(guest)
        try:
            guest.connection.send(_mac(self._secret, b"listens", self._purpose, guest.nonce, theirs))
            guest.connection.setblocking(True)
        except OSError:
            guest.connection.close()
            return False
        return True

    def _refuse(self, guest: _Guest) -> None:
        self.refused += 1
        self._drop(guest)
        guest.connection.close()

    def _drop(self, guest: _Guest) -> None:
        del self._guests[guest.connection]
        self._selector.unregister(guest.connection)


@dataclass
class _Guest:
    connection: socket.socket
    address: tuple[str, int]
    limit: float
    """On the monotonic clock."""
    nonce: bytes
    said: bytes = b""


def _mac(secret: bytes, side: bytes, purpose: str, listens: bytes, connects: bytes) -> bytes:
    parts = (MAGIC, side, purpose.encode(), listens, connects)
    message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)  # so that no two lists read the same
    return hmac.new(secret, message, hashlib.sha256).digest()


def _read_exactly(connection: socket.socket, count: int, limit: float, where: str) -> bytes:
    data = b""
    while len(data) < count:
        left = limit - time.monotonic()
        if left <= 0:
            raise HandshakeError(f"{where}: what listens there does not answer as Shoal does")
        connection.settimeout(left)
        try:
            more = connection.recv(count - len(data))
        except TimeoutError:
            continue
        if not more:
            raise HandshakeError(f"{where}: closed the connection; most likely the secrets differ")
        data += more
    return data
