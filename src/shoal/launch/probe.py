"""Probe: a process on each host that tells its facts and then tries to connect to all the others."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

from shoal.launch.facts import facts
from shoal.launch.hosts import Host
from shoal.launch.interface import choose_address
from shoal.launch.reach import Reach, parsed

_LONGEST = 1 << 20
"""Characters of a line."""
_CONNECT_S = 3.0


@dataclass
class Probed:
    """What one host told."""

    host: Host
    asked_at: float = 0.0
    answered_at: float = 0.0
    facts: dict[str, Any] | None = None
    tried: list[tuple[str, str, str | None]] = field(default_factory=list)
    """(the other's name, its address and port, why no connection came about)."""
    reason: str = ""
    """Why it could not be asked."""


def answer(source: TextIO, sink: TextIO) -> None:
    """The host's side: reads what is wanted, tells the facts, reads who else is there, tells whom it reaches."""
    wants = json.loads(source.readline(_LONGEST))
    chosen = choose_address(wants["towards"])
    ports = range(*wants["ports"]) if wants["ports"] else None
    told = facts(data=wants["data"], folder=wants["folder"], ports=ports)
    with _listen(chosen.address, ports) as listening:
        interface = {**asdict(chosen), "loopback": chosen.is_loopback, "text": chosen.text}
        _tell(sink, {**told, "interface": interface, "port": listening.getsockname()[1], "time": time.time()})
        peers = json.loads(source.readline(_LONGEST) or "[]")
        with ThreadPoolExecutor(min(64, len(peers) or 1)) as pool:
            _tell(sink, list(pool.map(lambda peer: _try(*peer), peers)))
        source.readline(_LONGEST)  # until the others have tried too


def probe(hosts: Sequence[Host], wants: dict[str, Any], reach: Reach, *, limit_s: float = 30.0) -> list[Probed]:
    """Asks all hosts at once; who does not answer within `limit_s` seconds is left."""
    found = [Probed(host) for host in hosts]
    first_away = next((host for host in hosts if not host.is_here), None)
    towards = _address(first_away, reach) if first_away else None
    told = threading.Barrier(len(hosts))
    tried = threading.Barrier(len(hosts))

    def one(probed: Probed) -> None:
        asked = {**wants, "towards": towards if probed.host.is_here else None}
        probed.asked_at = time.time()
        try:
            process = subprocess.Popen(
                reach.shoal(probed.host, "doctor", "--probe"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        except OSError as error:
            probed.reason = reach.reason(probed.host, 127, f"{error.filename}: {error.strerror}")
            told.wait()
            tried.wait()
            return
        is_late = False
        assert process.stdin and process.stdout and process.stderr
        try:
            probed.facts, is_late = _ask(process, asked, limit_s)
            probed.answered_at = time.time()
            told.wait()
            others = [
                (other.host.text, other.facts["interface"]["address"], other.facts["port"])
                for other in found
                if other is not probed and other.facts
            ]
            if probed.facts:
                reached, _ = _ask(process, others, limit_s)
                late = [(name, f"{address}:{port}", "not tried in time") for name, address, port in others]
                probed.tried = [(name, place, why) for name, place, why in reached or late]
            tried.wait()
        except BaseException:
            told.abort()
            tried.abort()
            raise
        finally:
            try:
                process.stdin.close()
            except OSError:
                pass
            said = process.stderr.read()
            process.stdout.close()
            code = process.wait()
        if probed.facts is None:
            probed.reason = reach.reason(probed.host, None if is_late else code, said)

    with ThreadPoolExecutor(max(1, len(hosts))) as pool:
        list(pool.map(one, found))
    return found


def _ask(process: subprocess.Popen[str], question: Any, limit_s: float) -> tuple[Any, bool]:
    """The answer, None where the process went away; and whether it was killed for taking too long."""
    assert process.stdin and process.stdout
    late = threading.Event()
    alarm = threading.Timer(limit_s, lambda: (late.set(), process.kill()))
    alarm.start()
    try:
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        while line := process.stdout.readline(_LONGEST):
            if isinstance(said := parsed(line), (dict, list)):  # a login shell may print something first
                return said, False
    except OSError:
        pass
    finally:
        alarm.cancel()
    return None, late.is_set()


def _tell(sink: TextIO, message: Any) -> None:
    sink.write(json.dumps(message) + "\n")
    sink.flush()


def _listen(address: str, ports: range | None) -> socket.socket:
    """On the chosen interface only; the kernel takes connections in without our help."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in ports or (0,):
        try:
            return socket.create_server((address, port), family=family, backlog=128)
        except OSError:
            continue
    return socket.create_server((address, 0), family=family, backlog=128)


def _try(name: str, address: str, port: int) -> tuple[str, str, str | None]:
    place = f"{address}:{port}"
    try:
        socket.create_connection((address, port), timeout=_CONNECT_S).close()
    except TimeoutError:
        return name, place, "no answer"
    except OSError as error:
        return name, place, error.strerror or str(error)
    return name, place, None


def _address(host: Host, reach: Reach) -> str:
    """The name or address that ssh makes of a host's name."""
    config = ["-F", reach.config] if reach.config else []
    try:
        done = subprocess.run(
            ["ssh", *config, "-G", "--", host.name],
            capture_output=True,
            text=True,
            timeout=10,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return host.name
    found = [line.split(None, 1)[1] for line in done.stdout.splitlines() if line.startswith("hostname ")]
    return found[0] if found else host.name
