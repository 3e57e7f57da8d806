"""Reach: how a command gets to another host through ssh, and in one line why it did not."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.launch.hosts import Host

SSH_FAILED = 255
"""ssh's own exit code; every other one is the remote command's."""
_MISSING = (126, 127)
"""How shells say that a program cannot be run, or is not there."""


@dataclass(frozen=True)
class Reach:
    """What ssh is told beside the host. Nothing here is ever read by a shell of this host."""

    config: str | None = None
    """A file in the place of ~/.ssh/config."""
    options: tuple[str, ...] = ()
    """As behind ssh's -o: `IdentityFile=…`."""
    connect_s: int = 10
    """How long to wait for a connection."""
    python: str = field(default_factory=lambda: sys.executable)
    """The interpreter there."""
    workdir: str | None = None
    """The folder there; None: the home folder."""

    def shoal(self, host: Host, *words: str) -> tuple[str, ...]:
        """The command here that runs `shoal WORDS` on `host`; without ssh where that is this host."""
        return self.argv(host, (self.python, "-m", "shoal", *words))

    def argv(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        """The command here that runs `argv` on `host`."""
        if host.is_here:
            return tuple(argv)
        ssh = ["ssh", "-T", "-x", "-a"]
        ssh += ["-F", self.config] if self.config else []
        # Not a master for later connections: it would go to the background and hold our pipes open.
        for option in (*self.options, "BatchMode=yes", "ControlMaster=no", f"ConnectTimeout={self.connect_s}"):
            ssh += ["-o", option]
        ssh += ["-p", str(host.port)] if host.port is not None else []
        ssh += ["-l", host.user] if host.user is not None else []
        remote = f"exec {shlex.join(argv)}"  # the login shell there reads one string; exec leaves no shell in between
        if self.workdir is not None:
            remote = f"cd {shlex.quote(self.workdir)} && {remote}"
        return (*ssh, "--", host.name, remote)

    def reason(self, host: Host, code: int | None, said: str) -> str:
        """Why a command on `host` failed, in one line with what mends it. `code`: ssh's exit code; `said`: its stderr.

        `code` None: it gave no answer in time.
        """
        name = host.text
        if code is None:
            return f"{name}: no answer; look whether it is up: ssh {_words(host)} true"
        if code == SSH_FAILED and not host.is_here:
            for sign, told in _SSH_SAYS:
                if sign in said:
                    return f"{name}: {told.format(ssh=_words(host), known=_known(host), copy=_words(host, '-p'))}"
        last = _last_line(said)
        if self.workdir is not None and self.workdir in said and ("cd:" in said or "can't cd" in said):
            return f"{name}: no folder {self.workdir} there; make it, or send this one: --sync-dst-dir {self.workdir}"
        if code in _MISSING or ("No such file or directory" in last and self.python in last):
            return f"{name}: no interpreter {self.python} there; install it there, or name another with --python PATH"
        if "No module named shoal" in last or "No module named 'shoal'" in last:
            return (
                f"{name}: {self.python} has no Shoal there; run there: {shlex.quote(self.python)} -m pip install shoal"
            )
        return f"{name}: {last or f'exit {code} without a word'}"


_SSH_SAYS = (
    (
        "Could not resolve hostname",
        "no host of that name; correct it in -H or the hostfile, or add it to ~/.ssh/config",
    ),
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key has changed since it was first seen; if that is meant to be: ssh-keygen -R {known}",
    ),
    ("Host key verification failed", "its host key is not known here; look at it and accept it once: ssh {ssh} true"),
    ("Permission denied", "refuses the login; give it your key: ssh-copy-id {copy}"),
    ("Too many authentication failures", "refuses the login; name the key in ~/.ssh/config with IdentitiesOnly yes"),
    ("Connection refused", "nothing listens at its ssh port; start sshd there, or name the port as in host:2222"),
    ("No route to host", "no route to it; look at its network and its name"),
    ("Network is unreachable", "its network cannot be reached from here; look at the routes: ip route"),
    ("Connection timed out", "does not answer; look whether it is up and no firewall is in between"),
    ("Operation timed out", "does not answer; look whether it is up and no firewall is in between"),
    ("banner exchange", "does not answer as ssh does; look at the port and at sshd's MaxStartups there"),
    ("kex_exchange_identification", "closed the connection before the login; look at sshd's MaxStartups there"),
    ("Connection closed by", "closed the connection before the login; look at sshd's log there"),
    ("Connection reset", "closed the connection before the login; look at sshd's log there"),
)
"""What ssh prints -> what is said of it; the first that fits."""


@dataclass(frozen=True)
class Answer:
    """What came of a command on one host."""

    host: Host
    code: int | None
    """None: no answer in time."""
    stdout: str
    stderr: str
    asked_at: float
    answered_at: float
    """Unix seconds."""

    def messages(self) -> list[dict[str, Any]]:
        """The JSON lines of its output; what a noisy login shell prints before them is left out."""
        return [said for line in self.stdout.splitlines() if isinstance(said := parsed(line), dict)]

    @property
    def ok(self) -> bool:
        return self.code == 0


def ask(
    hosts: Sequence[Host], words: Sequence[str], reach: Reach, *, limit_s: float = 30.0, said: str = ""
) -> list[Answer]:
    """Runs `shoal WORDS` on all hosts at once, with `said` on its stdin; their answers in the order of the hosts."""
    from concurrent.futures import ThreadPoolExecutor

    def one(host: Host) -> Answer:
        asked_at = time.time()
        try:
            done = subprocess.run(
                reach.shoal(host, *words), input=said, capture_output=True, text=True, errors="replace", timeout=limit_s
            )
            code, out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired:
            code, out, err = None, "", ""
        except OSError as error:
            code, out, err = _MISSING[1], "", f"{error.filename}: {error.strerror}"
        return Answer(host, code, out, err, asked_at, time.time())

    with ThreadPoolExecutor(min(64, max(1, len(hosts)))) as pool:
        return list(pool.map(one, hosts))


def parsed(line: str) -> Any:
    """A JSON line; None for any other."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _words(host: Host, port: str = "-p") -> str:
    """The host as words of ssh's command line."""
    words = [port, str(host.port)] if host.port is not None else []
    return shlex.join([*words, f"{host.user}@{host.name}" if host.user else host.name])


def _known(host: Host) -> str:
    """The host as known_hosts names it."""
    return shlex.quote(f"[{host.name}]:{host.port}" if host.port not in (None, 22) else host.name)


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else ""
