"""What a doctor says of facts, and the facts themselves."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shoal.cli import shoal
from shoal.launch.doctor import Check, checks, peer_check, swift_checks
from shoal.launch.facts import code_hash, facts, fingerprint, sketch, swift_facts, versions
from shoal.launch.hosts import Host
from shoal.launch.interface import address_towards, choose_address

HOST = Host("node1", user="u", port=2222)
GOOD: dict[str, Any] = {
    "host": "node1",
    "python": "3.11.7",
    "executable": "/env/bin/python",
    "shoal": "0.1.0",
    "code": "aaaa",
    "package": "/env/shoal",
    "packages": {"torch": "2.15.0", "numpy": "2.4.6"},
    "time": 1000.0,
    "shm": {"bytes": 10**10, "free": 10**10},
    "files": [20000, 20000],
    "gpus": {"devices": 8, "models": ["NVIDIA H200"] * 8},
    "ports": None,
    "data": None,
    "data_asked": None,
    "folder": None,
    "alone": False,
    "interface": {"address": "10.0.0.1", "interface": "eth0", "loopback": False, "text": "10.0.0.1 (eth0), for x"},
}


def judged(here: dict[str, Any] | None = None, workers: int = 4, **there: Any) -> dict[str, Check]:
    found = checks(HOST, {**GOOD, **(here or {})}, {**GOOD, **there}, 999.9, 1000.1, workers=workers)
    return {check.name: check for check in found}


def test_a_host_like_this_one() -> None:
    found = judged()
    assert list(found) == [
        "interpreter", "packages", "code", "clock", "/dev/shm", "open files", "interface", "GPUs",
    ]  # fmt: skip
    assert {check.verdict for check in found.values()} == {"ok"}


@pytest.mark.parametrize(
    ("name", "verdict", "there", "said"),
    [
        (
            "interpreter",
            "fault",
            {"python": "3.12.1"},
            "3.12.1 at /env/bin/python, here it is 3.11.7; install Python 3.11 there, or name it with --python PATH",
        ),
        (
            "packages",
            "fault",
            {"packages": {"torch": "2.14.0"}},
            "torch 2.14.0 (here 2.15.0), numpy missing (here 2.4.6); "
            "ssh -p 2222 u@node1 '/env/bin/python -m pip install torch==2.15.0 numpy==2.4.6'",
        ),
        (
            "code",
            "fault",
            {"code": "bbbb"},
            "shoal 0.1.0, code bbbb, here it is shoal 0.1.0, code aaaa; "
            "rsync -a --delete -e 'ssh -p 2222' /env/shoal/ u@node1:/env/shoal/",
        ),
        (
            "code",
            "fault",
            {"code": "bbbb", "shoal": "0.0.9"},
            "shoal 0.0.9, code bbbb, here it is shoal 0.1.0, code aaaa; "
            "ssh -p 2222 u@node1 '/env/bin/python -m pip install shoal==0.1.0'",
        ),
        ("clock", "note", {"time": 993.0}, "6.9 s behind this host's; ssh -p 2222 u@node1 'sudo chronyc makestep'"),
        ("clock", "note", {"time": 1060.0}, "59.9 s ahead of this host's"),
        (
            "/dev/shm",
            "fault",
            {"shm": {"bytes": 64 << 20, "free": 60 << 20}},
            "only 63 MB free of 67 MB; ssh -p 2222 u@node1 'sudo mount -o remount,size=2G /dev/shm'",
        ),
        ("open files", "fault", {"files": [256, 4096]}, "limit 256 (at most 4096); ssh -p 2222 u@node1 "),
        ("GPUs", "note", {"gpus": {"devices": 0, "models": []}}, "0, this host has 8"),
        ("GPUs", "note", {"gpus": {"devices": 2, "models": []}}, "2, and no driver that names them"),
        ("ports", "fault", {"ports": 5}, "only 5 of the range free, 6 wanted; name a wider --ports A-B"),
        ("ports", "ok", {"ports": 6}, "6 free"),
        (
            "interface",
            "fault",
            {"interface": {**GOOD["interface"], "loopback": True, "text": "127.0.0.1 (lo), for x"}},
            "127.0.0.1 (lo), for x; others cannot reach a loopback; name the host by the address",
        ),
        (
            "interface",
            "fault",
            {"interface": {**GOOD["interface"], "interface": ""}},
            "an address translation is in between",
        ),
        (
            "run folder",
            "fault",
            {"folder": {"path": "/runs/x", "writable": False}},
            "/runs/x: not writable; name another with --run DIR",
        ),
        (
            "run folder",
            "note",
            {"folder": {"path": "/runs/x", "writable": True, "free": 1000}},
            "/runs/x: writable, 1 KB free",
        ),
    ],
)
def test_what_is_wrong_and_what_mends_it(name: str, verdict: str, there: dict[str, Any], said: str) -> None:
    check = judged(**there)[name]
    assert check.verdict == verdict
    assert said in check.line() and check.line().startswith(f"node1:2222: {name}: ".replace("node1", "u@node1"))
    assert "\n" not in check.line()


def test_data_that_differs_or_is_not_there() -> None:
    mine = {"path": "/data/x", "files": 10, "bytes": 5000, "hash": "aaaa"}
    here = {"data_asked": "/data/x", "data": mine}
    assert judged(here, data=mine)["data"].verdict == "ok"
    send = "rsync -a -e 'ssh -p 2222' /data/x u@node1:/data/"
    assert judged(here)["data"].line() == f"u@node1:2222: data: /data/x: nothing readable there; {send}"
    other = judged(here, data={**mine, "files": 9, "hash": "bbbb"})["data"]
    assert other.line() == (
        f"u@node1:2222: data: /data/x: 9 files, 5 KB, bbbb; here it is 10 files, 5 KB, aaaa; {send}"
    )
    assert "nothing readable on this host" in judged({"data_asked": "/data/x"})["data"].text


def test_a_slow_answer_is_no_skew() -> None:
    """The clock was read somewhere between question and answer."""
    (clock,) = [check for check in swift_checks(HOST, GOOD, GOOD, 990.0, 1010.0) if check.name == "clock"]
    assert clock.verdict == "ok"


def test_connections() -> None:
    tried = [("node2", "10.0.0.2:5000", None), ("node3", "10.0.0.3:5000", "Connection refused")]
    assert peer_check(HOST, tried[:1]).text == "reaches node2"
    broken = peer_check(HOST, tried)
    assert broken.verdict == "fault" and broken.text == "does not reach node3 at 10.0.0.3:5000 (Connection refused)"
    assert broken.mend.startswith("open the firewalls")


def test_facts_are_cheap_and_true() -> None:
    began = time.process_time()
    told = swift_facts()
    assert time.process_time() - began < 1
    assert told["packages"] == versions(("torch", "torchvision", "timm", "numpy", "msgspec", "safetensors"))
    assert told["packages"]["torch"] and len(told["code"]) == 12 and told["code"] == code_hash()
    assert json.loads(json.dumps(facts()))["host"] == socket.gethostname()
    code = "import sys; from shoal.launch.facts import facts; facts(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_fingerprint_is_of_what_is_held_not_of_where(tmp_path: Path) -> None:
    for place in ("a", "b"):
        folder = tmp_path / place / "sub"
        folder.mkdir(parents=True)
        (folder / "x").write_bytes(b"x" * 100)
        (folder.parent / "y").write_bytes(b"y")
    one, two = fingerprint(tmp_path / "a"), fingerprint(tmp_path / "b")
    assert one and two and one["hash"] == two["hash"] and (one["files"], one["bytes"]) == (2, 101)
    (tmp_path / "b" / "y").write_bytes(b"z")
    changed = fingerprint(tmp_path / "b")
    assert changed and changed["hash"] != one["hash"]
    single = fingerprint(tmp_path / "a" / "y")
    assert single and single["files"] == 1
    assert fingerprint(tmp_path / "none") is None


def test_a_glance_sees_names_and_sizes(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place / "sub").mkdir(parents=True)
        (tmp_path / place / "sub" / "x").write_bytes(b"x")
        (tmp_path / place / "y").write_bytes(b"y")
    one, two = sketch(tmp_path / "a"), sketch(tmp_path / "b")
    assert one and two and one["hash"] == two["hash"]
    (tmp_path / "b" / "sub" / "z").touch()
    two = sketch(tmp_path / "b")
    assert two and two["hash"] != one["hash"]
    (tmp_path / "empty").mkdir()
    assert sketch(tmp_path / "empty") is None and sketch(tmp_path / "none") is None
    assert sketch(tmp_path / "a" / "y") == fingerprint(tmp_path / "a" / "y")
    told = swift_facts(str(tmp_path / "a"))
    assert told["data"] == {**one, "path": str(tmp_path / "a")}


def test_ports_that_are_taken_are_not_free() -> None:
    with socket.create_server(("", 0)) as listening:
        port = listening.getsockname()[1]
        assert facts(ports=range(port, port + 1))["ports"] == 0


def test_the_address_and_why() -> None:
    chosen = choose_address(env={"SSH_CONNECTION": "10.0.0.9 5555 127.0.0.1 22"})
    assert (chosen.address, chosen.interface, chosen.is_loopback) == ("127.0.0.1", "lo", True)
    assert chosen.why == "ssh from 10.0.0.9 came in on it"
    assert choose_address(env={}).text == "127.0.0.1 (lo), for no other host takes part"
    assert choose_address("127.0.0.1", env={}).why == "the route to 127.0.0.1 leaves by it"
    assert choose_address("no.such.host.invalid", env={}).why == "there is no route to no.such.host.invalid"
    assert address_towards("no.such.host.invalid") is None
    away = choose_address(env={"SSH_CONNECTION": "10.0.0.9 5555 203.0.113.9 22"})
    assert away.interface == "" and "on no interface" in away.text


def run(*words: str) -> Result:
    return CliRunner().invoke(shoal, words, catch_exceptions=False, standalone_mode=False)


def test_this_host_is_well() -> None:
    result = run("doctor", "--ports", "20000-20100")
    assert "  ok   localhost: interpreter: " in result.stdout and "localhost: ports: " in result.stdout
    assert not result.return_value and " 0 faults" in f" {result.stdout.splitlines()[-1]}"


def test_a_host_that_is_none(tmp_path: Path) -> None:
    words = ("doctor", "-H", "localhost,nowhere.invalid", "--ssh-config", "/dev/null", "--data", str(tmp_path / "none"))
    result = run(*words)
    assert result.return_value == 1
    assert (
        "FAULT  nowhere.invalid: reached: no host of that name; correct it in -H or the hostfile, "
        "or add it to ~/.ssh/config"
    ) in result.stdout
    assert f"data: {tmp_path}/none: nothing readable on this host; correct the path" in result.stdout
    said = [json.loads(line) for line in run(*words, "--json").stdout.splitlines()]
    assert {check["verdict"] for check in said if check["host"] == "nowhere.invalid"} == {"fault"}
