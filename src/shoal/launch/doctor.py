"""Doctor: what would keep a job from running on these hosts, each fault with the command that mends it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shoal.launch.facts import PACKAGES
from shoal.launch.hosts import Host

Facts = Mapping[str, Any]

_SKEW_S = 2.0
_SHM = 64 << 20
_FREE = 1 << 30
_FILES = 1024


@dataclass(frozen=True)
class Check:
    """One thing that was looked at on one host."""

    host: str
    name: str
    verdict: Literal["ok", "note", "fault"]
    """A fault keeps a job from running, or from being the same job; a note may matter."""
    text: str
    mend: str = ""
    """The command, or the deed, that mends it."""

    def line(self) -> str:
        return f"{self.host}: {self.name}: {self.text}" + (f"; {self.mend}" if self.mend else "")


def swift_checks(host: Host, here: Facts, there: Facts, asked_at: float, answered_at: float) -> list[Check]:
    """What is compared before every start: interpreter, package versions, code, clock, data, and limits. Pure.

    `here` and `there` are `facts.swift_facts` or more; `asked_at` and `answered_at` are this host's clock before the
    question and after the answer.
    """
    found = [_interpreter(host, here, there), _packages(host, here, there), _code(host, here, there)]
    found += [_clock(host, there, asked_at, answered_at), _shm(host, there), _files(host, there)]
    return found + ([_data(host, here, there)] if here["data_asked"] else [])


def checks(
    host: Host, here: Facts, there: Facts, asked_at: float, answered_at: float, *, workers: int = 1
) -> list[Check]:
    """All that `there`, the facts of one host, says beside those of this host. Pure."""
    found = swift_checks(host, here, there, asked_at, answered_at)
    found += [_interface(host, there), _gpus(host, here, there)]
    found += [_ports(host, there, workers)] if there["ports"] is not None or here["ports"] is not None else []
    found += [_folder(host, there)] if there["folder"] is not None else []
    return found


def peer_check(host: Host, tried: Sequence[tuple[str, str, str | None]]) -> Check:
    """`tried`: (the other's name, the address and port, why no connection came about) for every other host. Pure."""
    broken = [(name, place, why) for name, place, why in tried if why is not None]
    if not broken:
        others = ", ".join(name for name, _, _ in tried) or "nobody else"
        return Check(host.text, "connections", "ok", f"reaches {others}")
    told = ", ".join(f"{name} at {place} ({why})" for name, place, why in broken)
    mend = "open the firewalls between the hosts, for all ports or for a range that --ports A-B names"
    return Check(host.text, "connections", "fault", f"does not reach {told}", mend)


def _interpreter(host: Host, here: Facts, there: Facts) -> Check:
    text = f"{there['python']} at {there['executable']}"
    if _minor(here["python"]) == _minor(there["python"]):
        return Check(host.text, "interpreter", "ok", text)
    return Check(
        host.text,
        "interpreter",
        "fault",
        f"{text}, here it is {here['python']}",
        f"install Python {_minor(here['python'])} there, or name it with --python PATH",
    )


def _packages(host: Host, here: Facts, there: Facts) -> Check:
    mine, theirs = here["packages"], there["packages"]
    wrong = [name for name in PACKAGES if mine.get(name) != theirs.get(name)]
    if not wrong:
        return Check(host.text, "packages", "ok", ", ".join(f"{name} {version}" for name, version in theirs.items()))
    told = ", ".join(f"{name} {theirs.get(name, 'missing')} (here {mine.get(name, 'missing')})" for name in wrong)
    wanted = [f"{name}=={mine[name]}" for name in wrong if name in mine]
    mend = on(host, shlex.join([there["executable"], "-m", "pip", "install", *wanted])) if wanted else ""
    return Check(host.text, "packages", "fault", told, mend)


def _code(host: Host, here: Facts, there: Facts) -> Check:
    text = f"shoal {there['shoal']}, code {there['code']}"
    if here["code"] == there["code"]:
        return Check(host.text, "code", "ok", text)
    if here["shoal"] != there["shoal"]:
        mend = on(host, shlex.join([there["executable"], "-m", "pip", "install", f"shoal=={here['shoal']}"]))
    else:
        package = str(there.get("package") or here.get("package") or "SHOAL")
        source = str(here.get("package") or "SHOAL")
        mend = shlex.join(["rsync", "-a", "--delete", *_rsh(host), f"{source}/", f"{_target(host)}:{package}/"])
    return Check(host.text, "code", "fault", f"{text}, here it is shoal {here['shoal']}, code {here['code']}", mend)


def _clock(host: Host, there: Facts, asked_at: float, answered_at: float) -> Check:
    """Its clock was read at some moment between question and answer: only what lies outside is skew for certain."""
    behind, ahead = asked_at - there["time"], there["time"] - answered_at
    skew = max(behind, ahead, 0.0)
    if skew <= _SKEW_S:
        return Check(host.text, "clock", "ok", "agrees" if skew == 0 else f"{skew:.1f} s off")
    side = "behind" if behind > ahead else "ahead of"
    mend = on(host, "sudo chronyc makestep") + "  # or: sudo timedatectl set-ntp true"
    return Check(host.text, "clock", "note", f"{skew:.1f} s {side} this host's", mend)


def _interface(host: Host, there: Facts) -> Check:
    chosen = there["interface"]
    text = chosen["text"]
    if there["alone"] or (chosen["interface"] and not chosen["loopback"]):
        return Check(host.text, "interface", "ok", text)
    what = "others cannot reach a loopback" if chosen["loopback"] else "an address translation is in between"
    mend = "name the host by the address of the network that all hosts share, without a tunnel"
    return Check(host.text, "interface", "fault", f"{text}; {what}", mend)


def _shm(host: Host, there: Facts) -> Check:
    if there["shm"] is None:
        return Check(host.text, "/dev/shm", "note", "there is none", "mount a tmpfs at /dev/shm")
    size, free = there["shm"]["bytes"], there["shm"]["free"]
    text = f"{_bytes(free)} free of {_bytes(size)}"
    if free > _SHM:
        return Check(host.text, "/dev/shm", "ok", text)
    mend = on(host, "sudo mount -o remount,size=2G /dev/shm") + "  # in a container: start it with --shm-size=2g"
    return Check(host.text, "/dev/shm", "fault", f"only {text}", mend)


def _gpus(host: Host, here: Facts, there: Facts) -> Check:
    devices, models = there["gpus"]["devices"], there["gpus"]["models"]
    text = f"{devices} ({', '.join(sorted(set(models)))})" if models else str(devices)
    if devices and not models:
        return Check(host.text, "GPUs", "note", f"{text}, and no driver that names them", on(host, "nvidia-smi"))
    if there["gpus"] != here["gpus"]:
        return Check(host.text, "GPUs", "note", f"{text}, this host has {here['gpus']['devices']}")
    return Check(host.text, "GPUs", "ok", text)


def _files(host: Host, there: Facts) -> Check:
    soft, hard = there["files"]
    if soft < 0 or soft >= _FILES:
        return Check(host.text, "open files", "ok", f"limit {'none' if soft < 0 else soft}")
    mend = "echo '* - nofile 65536' | sudo tee /etc/security/limits.d/nofile.conf"
    return Check(host.text, "open files", "fault", f"limit {soft} (at most {hard})", on(host, mend) + "; log in again")


def _ports(host: Host, there: Facts, workers: int) -> Check:
    free = there["ports"]
    need = workers + 2
    if free is None or free >= need:
        return Check(host.text, "ports", "ok", "any free one" if free is None else f"{free} free")
    return Check(
        host.text, "ports", "fault", f"only {free} of the range free, {need} wanted", "name a wider --ports A-B"
    )


def _data(host: Host, here: Facts, there: Facts) -> Check:
    path, mine, theirs = here["data_asked"], here["data"], there["data"]
    send = shlex.join(["rsync", "-a", *_rsh(host), path, f"{_target(host)}:{os.path.dirname(path) or '.'}/"])
    if mine is None:
        return Check(host.text, "data", "fault", f"{path}: nothing readable on this host", "correct the path")
    if theirs is None:
        return Check(host.text, "data", "fault", f"{path}: nothing readable there", send)
    text = f"{path}: {theirs['files']} files, {_bytes(theirs['bytes'])}, {theirs['hash']}"
    if mine["hash"] == theirs["hash"]:
        return Check(host.text, "data", "ok", text)
    other = f"here it is {mine['files']} files, {_bytes(mine['bytes'])}, {mine['hash']}"
    return Check(host.text, "data", "fault", f"{text}; {other}", send)


def _folder(host: Host, there: Facts) -> Check:
    folder = there["folder"]
    if not folder["writable"]:
        return Check(host.text, "run folder", "fault", f"{folder['path']}: not writable", "name another with --run DIR")
    free = folder.get("free", 0)
    verdict = "ok" if free > _FREE else "note"
    return Check(host.text, "run folder", verdict, f"{folder['path']}: writable, {_bytes(free)} free")


def on(host: Host, command: str) -> str:
    """A command line that runs `command` on `host`."""
    if host.is_here:
        return command
    port = f"-p {host.port} " if host.port is not None else ""
    return f"ssh {port}{_target(host)} {shlex.quote(command)}"


def _target(host: Host) -> str:
    return f"{host.user}@{host.name}" if host.user else host.name


def _rsh(host: Host) -> list[str]:
    return ["-e", f"ssh -p {host.port}"] if host.port is not None else []


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
