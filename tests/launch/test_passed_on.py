"""Signals sent to the launcher are for its workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import PRELUDE, SLEEP, SOURCE, wait_for

from lag import Lag

DRIVER = """
import json, signal, sys
from pathlib import Path
from shoal.launch.head import Head
from shoal.launch.job import Command, Job, Plan
from shoal.launch.launchers.local import local_line
folder = Path(sys.argv[1])
before = [signal.getsignal(number) for number in (2, 15, 1, 10)]
commands = [
    Command('worker', rank, 'localhost', (sys.executable, '-c', script), {}, folder / f'{rank}.log')
    for rank, script in enumerate(sys.argv[2:])
]
outcome = Head(Plan(tuple(commands), Job((), folder), 'local'), local_line).start().wait(60)
restored = before == [signal.getsignal(number) for number in (2, 15, 1, 10)]
print(json.dumps([outcome.exit_code, outcome.lines, restored]))
"""

READY = "open(os.environ['FOLDER'] + '/ready-' + os.environ['WHO'], 'w').close()"

SAVES = """
def save(number, frame):
    print('got', signal.Signals(number).name, flush=True)
    time.sleep(0.1)
    sys.exit(130 if number == signal.SIGINT else 75)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1): signal.signal(number, save)
"""

DEAF = "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"


def driven(folder: Path, *bodies: str, ignore: signal.Signals | None = None) -> subprocess.Popen[str]:
    """An agent in a process of its own, whose workers are past their start when this returns."""
    scripts = [f"{PRELUDE}os.environ['WHO'] = '{rank}'\n{body}\n{READY}\n{SLEEP}" for rank, body in enumerate(bodies)]
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder), *scripts],
        env={**os.environ, "PYTHONPATH": SOURCE, "FOLDER": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=(lambda: signal.signal(ignore, signal.SIG_IGN) and None) if ignore else None,
    )
    wait_for(lambda: all((folder / f"ready-{rank}").exists() for rank in range(len(bodies))))
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str], bool]:
    out, _ = process.communicate(timeout=30)
    return json.loads(out)


@pytest.mark.parametrize(
    ("sent", "got", "code"),
    [("SIGINT", "SIGINT", 130), ("SIGTERM", "SIGTERM", 75), ("SIGHUP", "SIGTERM", 75), ("SIGUSR1", "SIGUSR1", 75)],
)
def test_signals_are_passed_on_once(tmp_path: Path, sent: str, got: str, code: int) -> None:
    process = driven(tmp_path, SAVES, SAVES)
    process.send_signal(signal.Signals[sent])
    assert ended(process) == [code, [], True]
    assert [(tmp_path / f"{rank}.log").read_text() for rank in (0, 1)] == [f"got {got}\n"] * 2


def test_second_interrupt_kills_at_once(tmp_path: Path) -> None:
    process = driven(tmp_path, DEAF, DEAF)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("SIGINT: passed on to 2 workers")
    process.send_signal(signal.SIGINT)
    assert ended(process) == [
        130,
        ["told to stop a second time (SIGINT)", "killed by the agent: worker 0, worker 1"],
        True,
    ]


def test_program_without_handlers_that_dies_of_a_passed_on_signal_did_not_fail(tmp_path: Path) -> None:
    process = driven(tmp_path, "pass", "signal.signal(signal.SIGINT, lambda *_: sys.exit(128 + signal.SIGINT))")
    process.send_signal(signal.SIGINT)
    assert ended(process) == [130, [], True]


def test_interrupt_works_where_the_agent_was_started_with_it_ignored(tmp_path: Path) -> None:
    asks = "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    process = driven(tmp_path, asks, ignore=signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert ended(process) == [130, [], True]


def test_hangup_stays_ignored_under_nohup(tmp_path: Path) -> None:
    process = driven(tmp_path, SAVES.replace("signal.SIGHUP, ", ""), ignore=signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGUSR1)
    assert ended(process) == [75, [], True]
    assert (tmp_path / "0.log").read_text() == "got SIGUSR1\n"


def test_told_to_stop_while_hosts_are_still_asked(tmp_path: Path, lag: Lag) -> None:
    """Nothing was started, and nobody may take that for a job well done."""
    driver = """
import os, signal, sys, threading
from shoal.launch.head import Head
from shoal.launch.hosts import Host
from shoal.launch.job import Command, Job, Plan
from shoal.launch.line import Program
from pathlib import Path
def deaf(host, plan, terminal):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    return Program(['sleep', '60'], os.environ, lambda code, said: 'deaf', is_agent=False)
folder = Path(sys.argv[1])
command = Command('worker', 0, 'localhost', ('true',), {}, folder / 'log')
ended = Head(Plan((command,), Job((), folder), 'local', (Host('localhost'),)), deaf).start().wait(30)
print(ended.exit_code, *ended.lines)
"""
    env = {**os.environ, "PYTHONPATH": SOURCE}
    began = lag.begin()
    done = subprocess.run([sys.executable, "-c", driver, str(tmp_path)], env=env, capture_output=True, text=True)
    assert time.monotonic() - began < lag.allows(4), "a host that never answered was waited for"
    assert done.stdout == "130 told to stop before the start (SIGINT)\n", done.stderr
