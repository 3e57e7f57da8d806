"""Leashes: any program ends with its agent, also inside C code that holds Python's lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import shoal
from shoal.launch.below import below, kill_below
from shoal.launch.leash import Leash

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="leashes are Linux's")

SOURCE = str(Path(shoal.__file__).parents[1])
AGENT = """
import os, subprocess, sys, time
from shoal.launch.leash import Leash
leash = Leash()
if sys.argv[1] == "only the pipe":
    import shoal.launch.leash as module
    arm = leash.arm
    module._PR_SET_PDEATHSIG = 0  # no such option
child = subprocess.Popen(sys.argv[2:], pass_fds=leash.descriptors, preexec_fn=leash.arm, start_new_session=True)
leash.started()
print(child.pid, flush=True)
time.sleep(1000)
"""
HOLDS_THE_LOCK = "import ctypes; ctypes.PyDLL(None).sleep(1000)"


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(true: Callable[[], object], limit_s: float = 5.0) -> None:
    limit = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.005)


@pytest.mark.parametrize("how", ["both", "only the pipe"])
@pytest.mark.parametrize("argv", [["sleep", "1000"], [sys.executable, "-c", HOLDS_THE_LOCK]], ids=["sleep", "C code"])
def test_a_program_ends_with_its_agent(how: str, argv: list[str]) -> None:
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, how, *argv], env={**os.environ, "PYTHONPATH": SOURCE}, stdout=subprocess.PIPE
    )
    assert agent.stdout
    child = int(agent.stdout.readline())
    wait_until(lambda: b"sleep" in Path(f"/proc/{child}/cmdline").read_bytes())
    assert lives(child)
    agent.kill()
    agent.wait()
    agent.stdout.close()
    wait_until(lambda: not lives(child))


def test_an_end_before_anything_was_armed_is_noticed() -> None:
    leash = Leash()
    os.close(leash._held)
    child = subprocess.Popen(["sleep", "1000"], pass_fds=leash.descriptors, preexec_fn=leash.arm)
    assert child.wait(5) == -signal.SIGKILL
    leash._held = -1
    leash.drop()


FAMILY = '''
import os, subprocess, sys, time
from shoal.launch.below import below, kill_below
from shoal.launch.leash import adopt_orphans
adopt_orphans()
bystander = int(sys.argv[1])
forks = """
import os, time
for _ in range(60):
    if os.fork(): os._exit(0)
    os.setsid()
    time.sleep(0.005)
time.sleep(1000)
"""
subprocess.Popen([sys.executable, "-c", forks])
spared = subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["setsid", "-f", "sh", "-c", "sleep 1000 & sleep 1000"]).wait()
while sum(process.name == "sleep" for process in below()) < 3: time.sleep(0.01)
assert kill_below(spare=[spared.pid]) == []
assert [process.pid for process in below()] == [spared.pid], below()
os.kill(bystander, 0)
assert kill_below() == [] and below() == []
print("done")
'''


def test_all_below_are_killed_however_they_fork_and_nobody_else() -> None:
    bystander = subprocess.Popen(["sleep", "1000"])
    try:
        done = subprocess.run(
            [sys.executable, "-c", FAMILY, str(bystander.pid)],
            env={**os.environ, "PYTHONPATH": SOURCE},
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.stdout == "done\n", done.stderr
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_nobody_is_below_a_process_without_children() -> None:
    code = "from shoal.launch.below import *; assert below() == [] and kill_below() == []"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": SOURCE}, check=True, timeout=20)


def test_who_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it hung in the kernel."""
    import shoal.launch.below as module

    child = subprocess.Popen(["sleep", "1000"])
    monkeypatch.setattr(module, "_kill", lambda process: None)
    beats: list[int] = []
    others = [process.pid for process in below() if process.pid != child.pid]
    left = kill_below(spare=others, limit_s=0.05, beat=lambda: beats.append(1))
    assert [process.pid for process in left] == [child.pid]
    assert left[0].name == "sleep"
    assert beats
    child.kill()
    child.wait()
