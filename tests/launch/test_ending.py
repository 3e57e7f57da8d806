"""Who failed first, and what is told of it."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path

import pytest
from tiny import SLEEP, SOURCE, head, log, run, wait_for, worker

from shoal.launch.ending import Ending, outcome
from shoal.launch.head import Head
from shoal.launch.hosts import Host
from shoal.launch.job import Command, Job, Outcome, Plan
from shoal.launch.line import Line, Program
from shoal.launch.report import Report


def test_error_with_traceback_is_told_last(tmp_path: Path) -> None:
    failing = "report_error('ValueError: no', traceback='Traceback:\\n  line 1\\nValueError: no'); sys.exit(1)"
    ended = run(tmp_path, SLEEP, failing, report_s=0.2)
    assert ended.exit_code == 1
    assert ended.lines == (
        "also ended because of it: worker 0 (killed by the agent)",
        "worker 1 failed first: exit 1",
        "Traceback:",
        "  line 1",
        "ValueError: no",
        f"log: {tmp_path}/logs/worker-1.log",
    )


def test_error_that_explains_itself_is_one_line(tmp_path: Path) -> None:
    ended = run(tmp_path, "report_error('no source called x', exit_code=2); sys.exit(2)")
    assert ended == Outcome(
        2, ("worker 0 failed first: exit 2", "no source called x", f"log: {tmp_path}/logs/worker-0.log")
    )


def test_killed_worker_is_the_culprit_though_its_victim_reported_earlier(tmp_path: Path) -> None:
    victim = """
        report_error('connection reset by peer', collateral=True)
        open(os.environ['FOLDER'] + '/told', 'w')
        sys.exit(1)
    """
    killed = """
        print('step 7', flush=True)
        while not os.path.exists(os.environ['FOLDER'] + '/told'): time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = run(tmp_path, victim, killed, SLEEP)
    assert ended.exit_code == 1
    assert ended.lines == (
        "also ended because of it: worker 0 (exit 1), worker 2 (killed by the agent)",
        "worker 1 failed first: killed by SIGKILL (exit -9)",
        "step 7",
        f"log: {tmp_path}/logs/worker-1.log",
    )


def test_killed_worker_is_the_culprit_when_its_victim_reports_later(tmp_path: Path) -> None:
    killed = "open(os.environ['FOLDER'] + '/pid', 'w').write(str(os.getpid())); os.kill(os.getpid(), signal.SIGSEGV)"
    victim = """
        pid = os.environ['FOLDER'] + '/pid'
        while not os.path.exists(pid): time.sleep(0.01)
        time.sleep(0.2)
        report_error('connection reset by peer', traceback='long', collateral=True); sys.exit(1)
    """
    ended = run(tmp_path, victim, killed)
    assert ended.lines[0] == "also ended because of it: worker 0 (exit 1)"
    assert ended.lines[1] == "worker 1 failed first: killed by SIGSEGV (exit -11)"


def ending(rank: int, status: int | None, at: float, report: Report | None = None, **more) -> Ending:
    return Ending(f"worker {rank}", Path("log"), True, status, at, report=report, **more)


@pytest.mark.parametrize("culprit", [0, 1])
def test_of_two_errors_of_their_own_the_earlier_is_the_cause(culprit: int) -> None:
    """By the time of the report, in whatever order they ended."""
    times = (1.0, 2.0) if culprit == 0 else (2.0, 1.0)
    endings = [ending(rank, 1, 9.0 - rank, Report(f"error {rank}", time=times[rank])) for rank in (0, 1)]
    assert outcome(endings).lines[1:3] == (f"worker {culprit} failed first: exit 1", f"error {culprit}")


def test_report_is_compared_with_death_by_their_times() -> None:
    reported = ending(0, 1, 5.0, Report("error", time=3.0))
    assert outcome([reported, ending(1, -9, 4.0)]).lines[1].startswith("worker 0 ")
    assert outcome([reported, ending(1, -9, 2.0)]).lines[1].startswith("worker 1 ")


def test_where_all_are_victims_the_earliest_is_named() -> None:
    endings = [ending(rank, 1, 9.0, Report("reset", collateral=True, time=5.0 - rank)) for rank in (0, 1)]
    assert outcome(endings).lines[1] == "worker 1 failed first: exit 1"


def test_losing_a_peer_that_stopped_in_good_order_is_no_failure() -> None:
    victim = ending(1, 1, 2.0, Report("reset", collateral=True, time=0.5))
    assert outcome([ending(0, 75, 1.0), victim]) == Outcome(75)
    assert outcome([ending(0, 75, 1.0), ending(1, 1, 2.0, Report("loss is nan"))]).exit_code == 1


def test_worker_that_reports_and_then_hangs_is_ended(tmp_path: Path) -> None:
    ended = run(tmp_path, SLEEP, "report_error('loss is nan'); " + SLEEP, report_s=0.2)
    assert ended.exit_code == 1
    assert ended.lines[-3:-1] == (
        "worker 1 failed first: reported an error and did not end by itself",
        "loss is nan",
    )


def test_without_a_report_the_last_lines_are_shown(tmp_path: Path) -> None:
    failing = """
        for line in range(40): print(line)
        print('the end', end='', flush=True)
        os._exit(5)
    """
    ended = run(tmp_path, failing)
    assert ended.lines == (
        "worker 0 failed first: exit 5",
        *(str(line) for line in range(26, 40)),
        "the end",
        f"log: {tmp_path}/logs/worker-0.log",
    )


def test_import_error_at_start(tmp_path: Path) -> None:
    ended = run(tmp_path, "import no_such_module", SLEEP, report_s=0.1)
    assert ended.exit_code == 1
    assert "worker 0 failed first: exit 1" in ended.lines
    assert ended.lines[-2] == "ModuleNotFoundError: No module named 'no_such_module'"


def test_program_that_does_not_exist(tmp_path: Path) -> None:
    command = Command("worker", 1, "localhost", ("no-such-program",), {}, tmp_path / "worker-1.log")
    commands = [worker(0, SLEEP, tmp_path), command, worker(2, SLEEP, tmp_path)]
    ended = head(commands, report_s=0.1).start().wait(30)
    assert ended == Outcome(
        1,
        (
            "also ended because of it: worker 0 (killed by the agent), worker 2 (not started)",
            "worker 1 failed first: exit 127",
            "cannot start 'no-such-program': No such file or directory",
            f"log: {tmp_path}/worker-1.log",
        ),
    )
    assert "cannot start" in command.log.read_text()


def test_an_agent_that_fails_is_told_with_its_traceback(tmp_path: Path) -> None:
    """It ends its processes, so that they are no culprits."""
    broken = """
from shoal.launch import agent
def fail(self, name): raise RuntimeError("broken agent")
agent.Agent._again = fail
agent.main()
"""

    def connect(host: Host, plan: Plan, terminal: int | None) -> Line:
        return Program((sys.executable, "-c", broken), {**os.environ, "PYTHONPATH": SOURCE}, str, is_agent=True)  # type: ignore[arg-type]

    planned = Plan((worker(0, SLEEP, tmp_path),), Job((), tmp_path), "local")
    running = Head(planned, connect, console=io.StringIO()).start()
    running._fleet.nodes["localhost"].say("again", name="worker 0")
    ended = running.wait(30)
    assert ended.exit_code == 1
    why = "the agent on localhost failed, a fault of Shoal's: RuntimeError: broken agent"
    assert ended.lines[0] == f"worker 0 failed first: {why}"
    assert ended.lines[1].startswith("Traceback") and "in fail" in "".join(ended.lines)
    assert ended.lines[-1] == f"log: {tmp_path}/logs/agent-localhost.log"
    assert (tmp_path / "logs" / "agent-localhost.log").read_text().splitlines() == list(ended.lines[1:-1])


def test_who_does_not_heed_a_signal_is_killed_and_nobody_takes_that_for_done(tmp_path: Path) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    running = head([worker(0, deaf, tmp_path)], grace_s=0.3).start()
    wait_for(lambda: "up" in log(tmp_path, 0))
    os.kill(os.getpid(), signal.SIGTERM)
    assert running.wait(30) == Outcome(75, ("killed by the agent, for it did not end when it was told to: worker 0",))
