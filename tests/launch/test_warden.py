"""`shoal agent` without a launcher: what is said on its stdin and stdout, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.launch.tagged import tagged

SOURCE = str(Path(shoal.__file__).parents[1])


class Talk:
    """The launcher's end."""

    def __init__(self, folder: Path) -> None:
        self.job = os.urandom(8).hex()
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal", "agent"],
            env={**os.environ, "PYTHONPATH": SOURCE, "SHOAL_JOB": self.job, "SSH_CONNECTION": "10.0.0.1 5 10.0.0.2 22"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def say(self, **message: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, what: str) -> dict[str, Any]:
        """The next message of that kind."""
        assert self.process.stdout
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("is") == what:
                return message
        raise AssertionError(f"no {what} came")

    def greet(self, **more: Any) -> None:
        hello = {"job": self.job, "run": str(self.folder), "silence_s": 30, "workdir": str(self.folder)}
        rest = {"env": {}, "marker": None, "files": {}, "facts": False, "pulses": False, "hang_s": None, "data": None}
        self.say(do="hello", **{**hello, **rest, **more})
        self.hear("ready")

    def start(self, *argv: str, generation: int = 0, **values: str) -> None:
        self.tell_start(*argv, generation=generation, **values)
        self.hear("started")

    def tell_start(self, *argv: str, generation: int = 0, **values: str) -> None:
        command = {"name": "worker 0", "listens": None, "leads": True, "argv": argv, "env": {"MEET": "{rendezvous}"}}
        command["log"] = str(self.folder / "logs" / "worker-0.log")
        self.say(do="start", commands=[command], values=values, generation=generation, address="127.0.0.1", secrets={})

    def left(self) -> list[str]:
        return [process.command for process in tagged(self.job)]


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    talk = Talk(tmp_path)
    yield talk
    for pid in [talk.process.pid, *(process.pid for process in tagged(talk.job))]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    talk.process.wait()
    assert talk.process.stdin and talk.process.stdout
    talk.process.stdout.close()
    try:
        talk.process.stdin.close()
    except BrokenPipeError:
        pass


def ends(talk: Talk) -> None:
    wait_for(lambda: not talk.left())


def wait_for(true: Callable[[], object], limit_s: float = 5.0) -> None:
    limit = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.01)


def test_it_says_who_is_here_and_how_it_was_reached(talk: Talk) -> None:
    here = talk.hear("here")
    assert here["address"] == "10.0.0.2"
    assert abs(here["time"] - time.time()) < 20


def test_a_process_from_start_to_end(talk: Talk) -> None:
    talk.greet()
    script = "import os; print('met at', os.environ['MEET'], os.environ['SHOAL_JOB'], flush=True); os._exit(3)"
    talk.start(sys.executable, "-c", script, rendezvous="10.0.0.9:77")
    assert talk.hear("line")["text"] == f"met at 10.0.0.9:77 {talk.job}"
    end = talk.hear("ended")
    assert (end["status"], end["killed"], end["tail"]) == (3, False, [f"met at 10.0.0.9:77 {talk.job}"])
    talk.say(do="bye", code=0)
    assert talk.process.wait(5) == 0


def test_kill_ends_all_and_a_new_generation_may_begin(talk: Talk) -> None:
    talk.greet()
    talk.start("sh", "-c", "echo one; setsid -f sleep 1000; sleep 1000")
    talk.hear("line")
    talk.say(do="kill")
    end = talk.hear("ended")
    assert (end["status"], end["killed"]) == (-9, True)
    assert talk.hear("quiet")["stuck"] == []
    assert all("agent" in command for command in talk.left())
    talk.start("sh", "-c", "echo two", generation=1)
    assert talk.hear("ended")["status"] == 0
    assert (talk.folder / "logs" / "worker-0.log").read_text() == "one\n\n--- restart 1 ---\ntwo\n"


def test_a_host_that_sees_no_run_folder_sends_its_logs(talk: Talk, tmp_path: Path) -> None:
    recipe = tmp_path / "elsewhere" / "recipe.yaml"
    talk.greet(marker=str(tmp_path / "no such file"), files={str(recipe): "a: 1\n"})
    assert recipe.read_text() == "a: 1\n"
    talk.start("sh", "-c", "echo hello")
    assert talk.hear("log")["data"] == "aGVsbG8K"
    assert not (tmp_path / "logs").exists()


def test_the_end_of_the_link_ends_all(talk: Talk) -> None:
    talk.greet()
    talk.start("sh", "-c", "trap '' TERM; setsid -f sleep 1000; sleep 1000")
    assert talk.process.stdin
    talk.process.stdin.close()
    ends(talk)


def test_a_silent_launcher_ends_all(talk: Talk) -> None:
    talk.greet(silence_s=1.5)
    talk.start("sleep", "1000")
    assert "heard nothing from the launcher for 1.5 s" in talk.hear("leaving")["why"]
    ends(talk)


def test_what_is_no_message_ends_all(talk: Talk) -> None:
    talk.greet()
    talk.start("sleep", "1000")
    assert talk.process.stdin
    talk.process.stdin.write(b"GET / HTTP/1.1\n")
    talk.process.stdin.flush()
    ends(talk)


def test_ports_that_are_taken(talk: Talk) -> None:
    talk.greet()
    talk.say(do="listen", names=["rendezvous", "one", "two"], open=["rendezvous"], address="127.0.0.1", ports=None)
    ports = talk.hear("listening")["ports"]
    assert len(set(ports.values())) == 3
    port = ports["rendezvous"]
    other = Talk(talk.folder)
    other.greet()
    other.say(do="listen", names=["rendezvous"], open=["rendezvous"], address="127.0.0.1", ports=[port, port + 1])
    fault = other.hear("fault")
    assert fault["usage"] and f"no free port in {port}-{port} on 127.0.0.1" in fault["text"]
    other.say(do="bye", code=0)
    other.process.communicate(timeout=5)


def test_what_ended_late_is_not_taken_for_what_was_started_meanwhile(talk: Talk) -> None:
    """Its descriptors' numbers are the new process's by then."""
    agent = talk.hear("here")["pid"]
    talk.greet()
    talk.start("sleep", "60")
    (old,) = (process.pid for process in tagged(talk.job) if process.command == "sleep 60")
    os.kill(agent, signal.SIGSTOP)  # so that it finds both at once, the launcher's word first
    talk.tell_start("true", generation=1)
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: old not in {process.pid for process in tagged(talk.job)})
    os.kill(agent, signal.SIGCONT)
    talk.hear("started")
    assert talk.hear("ended")["status"] == 0


def test_a_signal_for_nobody_is_no_fault(talk: Talk) -> None:
    """Told while the start goes wrong: of those behind a program that is not there none is started."""
    talk.greet()
    talk.say(do="tell", name="worker 7", number=15)
    talk.start("true")
    assert talk.hear("ended")["status"] == 0
