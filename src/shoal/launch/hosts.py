"""Hosts: where processes may run, as people name them: a hostfile, `-H a,b`, the old cloud template's variables."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.base.errors import UsageError, closest, shown_path

_HERE = ("localhost", "127.0.0.1", "::1")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}", re.ASCII)
_IPV6 = re.compile(r"[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9_.-]+)?", re.ASCII)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\+-]{0,127}\$?", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,6}", re.ASCII)
"""A name never begins with `-`: it becomes a word of ssh's command line."""


@dataclass(frozen=True)
class Host:
    """One host, as ssh reaches it."""

    name: str
    user: str | None = None
    port: int | None = None
    """Of its ssh server; None: ssh's own choice."""
    slots: int | None = None
    """Workers it takes; None: not said."""

    @property
    def is_here(self) -> bool:
        """Whether it is this very host, where no ssh is needed. A user or a port asks for ssh."""
        return self.user is None and self.port is None and _is_here(self.name)

    @property
    def text(self) -> str:
        """As a person would write it, without the slots."""
        name = f"[{self.name}]" if ":" in self.name and self.port is not None else self.name
        return f"{self.user}@" * (self.user is not None) + name + f":{self.port}" * (self.port is not None)

    def __str__(self) -> str:
        return self.text


def choose_hosts(
    hosts: str | None = None, hostfile: str | None = None, ips: str | None = None, env: Mapping[str, str] | None = None
) -> tuple[Host, ...]:
    """The hosts that a command line names (-H as list or file, --hostfile, --ips), else those that `env` names.

    Empty where nobody names any: this host alone.
    """
    named = {"-H": hosts, "--hostfile": hostfile, "--ips": ips}
    given = [flag for flag, value in named.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} both say which hosts; give one of them")
    if hostfile is not None:
        return read_hostfile(hostfile)
    if ips is not None:
        return parse_hosts(ips, "--ips")
    if hosts is not None:
        file = hostfile_among(hosts)
        return read_hostfile(file) if file else parse_hosts(hosts)
    return hosts_from_environment(env) if env is not None else ()


def hostfile_among(hosts: str | None = None, hostfile: str | None = None) -> Path | None:
    """The file that a command line takes its hosts from: --hostfile, or -H where that names one."""
    if hostfile is not None:
        return Path(hostfile)
    if hosts is not None and "," not in hosts and ("/" in hosts or Path(hosts).is_file()):
        return Path(hosts)
    return None


def parse_hosts(text: str, flag: str = "-H") -> tuple[Host, ...]:
    """`a,b:2222,user@c` in this order."""
    hosts: list[Host] = []
    where = f"{flag} {text if text.isprintable() else repr(text)}"
    for word in text.split(","):
        if not word.strip():
            raise UsageError(f"{where}: an empty name; expected hosts as in a,b:2222,user@c")
        host = _host(word.strip(), where)
        if any(_same(host, other) for other in hosts):
            raise UsageError(
                f"{where}: {host.text} is named twice; say how many workers it takes with --nproc-per-node"
            )
        hosts.append(host)
    return tuple(hosts)


def read_hostfile(path: str | Path) -> tuple[Host, ...]:
    """A host a line: `host`, `host:port`, `user@host`, each with `slots=N` behind it or not; # begins a comment."""
    shown = shown_path(path)
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"hostfile {shown}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UsageError(f"hostfile {shown}: is no text; expected a host a line") from None
    hosts: list[tuple[int, Host]] = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{shown}:{number}"
        host = _host(words[0], where)
        for option in words[1:]:
            host = _with_option(host, option, where)
        for before, other in hosts:
            if _same(host, other):
                raise UsageError(
                    f"{where}: {host.text} is named in line {before} already; name it once, with slots=N for N workers"
                )
        hosts.append((number, host))
    if not hosts:
        raise UsageError(f"hostfile {shown}: names no host; expected a host a line, as in 'node1 slots=4'")
    return tuple(host for _, host in hosts)


def hosts_from_environment(env: Mapping[str, str]) -> tuple[Host, ...]:
    """Hosts as the old cloud template for deep-learning clusters left them in the environment; empty without it.

    DEEPLEARNING_WORKERS_PATH is a hostfile, of which the first DEEPLEARNING_WORKERS_COUNT lines count; a host
    takes DEEPLEARNING_WORKER_GPU_COUNT workers.
    """
    path = env.get("DEEPLEARNING_WORKERS_PATH")
    if not path:
        return ()
    try:
        hosts = read_hostfile(path)
    except UsageError as error:
        raise UsageError(f"DEEPLEARNING_WORKERS_PATH: {error}") from None
    count = _count(env, "DEEPLEARNING_WORKERS_COUNT")
    if count is not None:
        if not 0 < count <= len(hosts):
            raise UsageError(
                f"DEEPLEARNING_WORKERS_COUNT: {count} of {len(hosts)} hosts in {shown_path(path)} cannot be"
            )
        hosts = hosts[:count]
    gpus = _count(env, "DEEPLEARNING_WORKER_GPU_COUNT")
    return tuple(replace(host, slots=host.slots or gpus or None) for host in hosts)


def _count(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "").strip()
    if text and not _NUMBER.fullmatch(text):
        raise UsageError(f"environment: {name} must be a whole number")
    return int(text) if text else None


def _host(word: str, where: str) -> Host:
    user, at, place = word.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise UsageError(f"{where}: {user!r} is no user's name; expected user@host")
    if place.startswith("["):  # [2001:db8::1]:2222
        name, closed, rest = place[1:].partition("]")
        colon, port = (rest[:1], rest[1:]) if closed else ("]", "")
    elif place.count(":") > 1:
        name, colon, port = place, "", ""
    else:
        name, colon, port = place.partition(":")
    if not (_NAME.fullmatch(name) or (":" in name and _IPV6.fullmatch(name))) or colon not in ("", ":"):
        raise UsageError(f"{where}: {word!r} is no host; expected host, host:port or user@host")
    if colon and not (_NUMBER.fullmatch(port) and 0 < int(port) < 65536):
        raise UsageError(
            f"{where}: {port!r} in {word!r} is no port of an ssh server; expected 1 to 65535, as in {name}:22"
        )
    return Host(name, user if at else None, int(port) if colon else None)


def _with_option(host: Host, option: str, where: str) -> Host:
    key, equals, value = option.partition("=")
    if key != "slots" or not equals:
        hint = closest(key, ("slots",)) if equals else ""
        raise UsageError(f"{where}: cannot read {option!r}; expected '{host.text} slots=4'{hint}")
    if host.slots is not None:
        raise UsageError(f"{where}: slots is said twice")
    if not _NUMBER.fullmatch(value) or int(value) < 1:
        raise UsageError(f"{where}: slots={value}: expected how many workers {host.text} takes, at least 1")
    return replace(host, slots=int(value))


def _same(one: Host, other: Host) -> bool:
    """Two ports of one name are two hosts: containers often are reached so."""
    return (one.name, one.port) == (other.name, other.port)


def _is_here(name: str) -> bool:
    if name in _HERE:
        return True
    own = socket.gethostname()
    return name in (own, own.partition(".")[0]) or _is_own_address(name)


def _is_own_address(name: str) -> bool:
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        socket.inet_pton(family, name)
    except OSError:
        return False
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((name, 0))  # only an address of this host can be bound; nothing is sent
        except OSError:
            return False
    return True
