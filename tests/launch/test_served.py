"""Servers of a job: started again where they are killed, ended when nobody is left to serve; who is expendable."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import PRELUDE, SLEEP, SOURCE, head, log, wait_for, worker

from lag import Lag
from shoal.launch.head import Head
from shoal.launch.job import Job, Outcome, Role
from shoal.launch.launchers.local import local_line
from shoal.launch.plan import plan_of

SERVER = """
import socket
folder = os.environ["FOLDER"]
lives = len([name for name in os.listdir(folder) if name.startswith("life")])
open(f"{folder}/life-{lives}", "w").close()
if lives == 0:
    os.kill(os.getpid(), signal.SIGKILL)
listening = socket.socket(fileno=int(os.environ["SHOAL_LISTEN_FD"]))
connection, _ = listening.accept()
connection.sendall(open(os.environ["SHOAL_SECRET_FILE"], "rb").read())
"""
ASKING = """
import socket
host, _, port = os.environ["SHOAL_SERVERS"].partition(":")
secret = socket.create_connection((host, int(port))).recv(100)
assert secret == open(os.environ["SHOAL_SECRET_FILE"], "rb").read() and len(secret) > 30
assert os.stat(os.environ["SHOAL_SECRET_FILE"]).st_mode & 0o077 == 0
assert os.environ["SHOAL_NUM_WORKERS"] == "1"
assert secret.decode() not in str(os.environ)
open(os.environ["FOLDER"] + "/secret", "wb").write(secret)
"""


def served(folder: Path, script: str, server: str, **job: Any) -> Head:
    """A worker and a server of Shoal's own, as `shoal train -s 1` plans them."""
    env = {"PYTHONPATH": SOURCE, "FOLDER": str(folder)}
    roles = [
        Role(name, 1, (sys.executable, "-c", PRELUDE + text), env)
        for name, text in (("worker", script), ("server", server))
    ]
    job.setdefault("console", io.StringIO())
    console = job.pop("console")
    return Head(plan_of(Job(tuple(roles), folder, **job), "local"), local_line, console=console)  # type: ignore[arg-type]


def test_a_killed_server_is_started_again_at_its_port(tmp_path: Path) -> None:
    console = io.StringIO()
    ended = served(tmp_path, ASKING, SERVER, console=console).start().wait(timeout_s=30)
    assert ended == Outcome(0), log(tmp_path, 0)
    assert (tmp_path / "life-1").exists()
    assert "server 0 was killed by SIGKILL; it is started again" in console.getvalue()


def test_each_generation_has_a_secret_of_its_own(tmp_path: Path) -> None:
    failing = ASKING.replace('/secret"', '/secret-" + os.environ["SHOAL_GENERATION"]')
    failing += 'sys.exit(os.environ["SHOAL_GENERATION"] == "0")'
    ended = served(tmp_path, failing, SERVER, max_restarts=1, report_s=0.1).start().wait(timeout_s=30)
    assert ended == Outcome(0), log(tmp_path, 0)
    assert (tmp_path / "secret-0").read_bytes() != (tmp_path / "secret-1").read_bytes()


def test_a_server_that_failed_by_itself_is_the_end(tmp_path: Path) -> None:
    ended = served(tmp_path, SLEEP, "sys.exit(3)", report_s=0.1).start().wait(timeout_s=30)
    assert ended.exit_code == 1
    assert "server 0 failed first: exit 3" in ended.lines


@pytest.mark.parametrize("expendable", [True, False])
def test_who_is_expendable_may_be_killed(tmp_path: Path, expendable: bool) -> None:
    scripts = ("time.sleep(0.5)", "os.kill(os.getpid(), signal.SIGKILL)")
    commands = [worker(rank, script, tmp_path) for rank, script in enumerate(scripts)]
    commands[1] = replace(commands[1], expendable=expendable)
    ended = head(commands, report_s=0.1).start().wait(timeout_s=30)
    assert ended.exit_code == (0 if expendable else 1)
    assert ("worker 1 was killed by SIGKILL; the others went on" in ended.lines) == expendable


def test_servers_end_when_no_worker_is_left_to_serve(tmp_path: Path) -> None:
    commands = [worker(0, "pass", tmp_path), worker(0, SLEEP, tmp_path, role="server")]
    assert head(commands, grace_s=0.2).start().wait(30) == Outcome(0)


def test_servers_that_nobody_told_end_with_the_last_worker(tmp_path: Path, lag: Lag) -> None:
    """A signal that asks to stop is for the workers."""
    told = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); print('up', flush=True); time.sleep(60)"
    commands = [worker(0, told, tmp_path), worker(0, SLEEP, tmp_path, role="server")]
    running = head(commands, report_s=0.2).start()
    wait_for(lambda: "up" in log(tmp_path, 0))
    os.kill(os.getpid(), signal.SIGTERM)
    began = lag.begin()
    assert running.wait(30).exit_code == 75
    assert time.monotonic() - began < lag.allows(10)
