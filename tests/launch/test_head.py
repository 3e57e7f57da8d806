"""A job from its start to its end: exit codes, limits, and that nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import pytest
from tiny import SLEEP, head, linux, log, run, tagged, worker

from lag import Lag
from shoal.launch.job import Outcome


@pytest.mark.parametrize(
    ("codes", "expected"),
    [((0, 0), 0), ((75, 75), 75), ((0, 75), 75), ((130, 0), 130), ((0, 1), 1), ((2, 0), 2), ((75, 3), 1)],
)
def test_exit_code_of_the_job(tmp_path: Path, codes: tuple[int, ...], expected: int) -> None:
    ended = run(tmp_path, *(f"sys.exit({code})" for code in codes))
    assert ended.exit_code == expected
    assert bool(ended.lines) == (expected in (1, 2))


def test_after_one_stopped_in_good_order_the_others_are_waited_for(tmp_path: Path) -> None:
    ended = run(tmp_path, "sys.exit(75)", "time.sleep(0.5); print('saved'); sys.exit(75)", report_s=0.0)
    assert ended == Outcome(75)
    assert log(tmp_path, 1) == "saved\n"


def test_who_does_not_stop_with_the_others_is_killed(tmp_path: Path) -> None:
    ended = run(tmp_path, "sys.exit(75)", SLEEP, grace_s=0.3)
    assert ended.exit_code == 75
    assert ended.lines == ("killed by the agent, for it did not end with the others: worker 1",)


@linux
def test_nothing_is_left_of_any_group(tmp_path: Path) -> None:
    tag = uuid.uuid4().hex
    with_children = """
        import subprocess
        for _ in range(2):
            subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(15, 1); time.sleep(60)'])
        open(f"{os.environ['FOLDER']}/ready-{os.getpid()}", 'w').close()
        while len(os.listdir(os.environ['FOLDER'])) < 3: time.sleep(0.01)  # the log folder and the other worker's
    """
    commands = [
        worker(0, textwrap.dedent(with_children) + "sys.exit(1)", tmp_path, TAG=tag),
        worker(1, textwrap.dedent(with_children) + SLEEP, tmp_path, TAG=tag),
    ]
    agent = head(commands, report_s=0.3).start()
    began = time.monotonic()
    while len(tagged(tag)) < 2 and time.monotonic() - began < 20:  # a process has its tag only once it runs its program
        time.sleep(0.01)
    alive = len(tagged(tag))
    assert agent.wait(30).exit_code == 1
    assert alive >= 2
    assert tagged(tag) == []


@linux
def test_what_escaped_its_session_is_killed_and_its_pipe_is_not_waited_for(tmp_path: Path, lag: Lag) -> None:
    escaping = """
        import subprocess
        child = subprocess.Popen(['setsid', '-f', 'sleep', '60'], start_new_session=True)
        child.wait()
        print('all of it')
    """
    tag = uuid.uuid4().hex
    began = lag.begin()
    assert head([worker(0, escaping, tmp_path, TAG=tag)]).start().wait(30) == Outcome(0)
    assert time.monotonic() - began < lag.allows(20)
    assert log(tmp_path, 0) == "all of it\n"
    assert tagged(tag) == []


def test_bystanders_live_on(tmp_path: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        run(tmp_path, "sys.exit(1)", SLEEP, report_s=0.0)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    run(tmp_path, "sys.exit(1)", SLEEP, report_s=0.0)
    assert len(os.listdir("/dev/fd")) == before


def test_wait_with_a_limit_kills_and_fails(tmp_path: Path) -> None:
    agent = head([worker(0, SLEEP, tmp_path)]).start()
    assert agent.status() == {"worker 0": "running"}
    ended = agent.wait(timeout_s=0.2)
    assert ended == Outcome(1, ("not done after 0.2 s", "killed by the agent: worker 0"))
    assert agent.status() == {"worker 0": "killed by the agent"}
    assert agent.wait() is ended


def test_cancel(tmp_path: Path) -> None:
    agent = head([worker(0, SLEEP, tmp_path), worker(1, SLEEP, tmp_path)]).start()
    agent.cancel()
    assert agent.wait(30) == Outcome(130, ("cancelled", "killed by the agent: worker 0, worker 1"))
    agent.cancel()
