"""Head and agent: who failed first, what people see, and that nothing is left, with tiny workers that need no torch."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import pytest

import shoal
from shoal.base.errors import UsageError
from shoal.launch.ending import Ending, outcome
from shoal.launch.environment import inherited
from shoal.launch.head import Head
from shoal.launch.job import Command, Job, Outcome, Plan, Role
from shoal.launch.launchers.local import local_line
from shoal.launch.output import Output
from shoal.launch.plan import plan_of
from shoal.launch.report import Report, report_error

SOURCE = str(Path(shoal.__file__).parents[1])
PRELUDE = "import os, signal, sys, time; from shoal.launch.report import report_error\n"
SLEEP = "time.sleep(60)"


def worker(rank: int, script: str, folder: Path, role: str = "worker", **env: str) -> Command:
    return Command(
        role=role,  # type: ignore[arg-type]
        rank=rank,
        host="localhost",
        argv=(sys.executable, "-c", PRELUDE + textwrap.dedent(script)),
        env={"PYTHONPATH": SOURCE, "FOLDER": str(folder), "SHOAL_RENDEZVOUS": "{rendezvous}", **env},
        log=folder / "logs" / f"{role}-{rank}.log",
    )


def head(commands: list[Command], *, console: TextIO | None = None, **job: Any) -> Head:
    """What starts `commands` on this host; `job`: fields of the Job."""
    planned = Plan(tuple(commands), Job((), commands[0].log.parent.parent, **job), "local")
    return Head(planned, local_line, console=console or io.StringIO())


def run(folder: Path, *scripts: str, **options: Any) -> Outcome:
    """Runs one worker per script; `console` in options reads along."""
    commands = [worker(rank, script, folder) for rank, script in enumerate(scripts)]
    return head(commands, **options).start().wait(timeout_s=30)


def log(folder: Path, rank: int) -> str:
    return (folder / "logs" / f"worker-{rank}.log").read_text()


def wait_for(true: Callable[[], object], seconds: float = 20) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)


def tagged(tag: str) -> list[int]:
    """Processes, wherever they are by now, whose environment holds `tag`; zombies have none."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if tag.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


# Exit codes


@pytest.mark.parametrize(
    ("codes", "expected"),
    [((0, 0), 0), ((75, 75), 75), ((0, 75), 75), ((130, 0), 130), ((0, 1), 1), ((2, 0), 2), ((75, 3), 1)],
)
def test_exit_code_of_the_job(tmp_path: Path, codes: tuple[int, ...], expected: int) -> None:
    ended = run(tmp_path, *(f"sys.exit({code})" for code in codes))
    assert ended.exit_code == expected
    assert bool(ended.lines) == (expected in (1, 2))


def test_after_one_stopped_in_good_order_the_others_are_waited_for(tmp_path: Path) -> None:
    ended = run(tmp_path, "sys.exit(75)", "time.sleep(0.5); print('saved'); sys.exit(75)", grace_s=0.0)
    assert ended == Outcome(75)
    assert log(tmp_path, 1) == "saved\n"


def test_who_does_not_stop_with_the_others_is_killed(tmp_path: Path) -> None:
    ended = run(tmp_path, "sys.exit(75)", SLEEP, leave_s=0.3)
    assert ended.exit_code == 75
    assert ended.lines == ("killed by the agent, for it did not end with the others: worker 1",)


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
    ended = served(tmp_path, failing, SERVER, max_restarts=1, grace_s=0.1).start().wait(timeout_s=30)
    assert ended == Outcome(0), log(tmp_path, 0)
    assert (tmp_path / "secret-0").read_bytes() != (tmp_path / "secret-1").read_bytes()


def test_a_server_that_failed_by_itself_is_the_end(tmp_path: Path) -> None:
    ended = served(tmp_path, SLEEP, "sys.exit(3)", grace_s=0.1).start().wait(timeout_s=30)
    assert ended.exit_code == 1
    assert "server 0 failed first: exit 3" in ended.lines


@pytest.mark.parametrize("expendable", [True, False])
def test_who_is_expendable_may_be_killed(tmp_path: Path, expendable: bool) -> None:
    scripts = ("time.sleep(0.5)", "os.kill(os.getpid(), signal.SIGKILL)")
    commands = [worker(rank, script, tmp_path) for rank, script in enumerate(scripts)]
    commands[1] = replace(commands[1], expendable=expendable)
    ended = head(commands, grace_s=0.1).start().wait(timeout_s=30)
    assert ended.exit_code == (0 if expendable else 1)
    assert ("worker 1 was killed by SIGKILL; the others went on" in ended.lines) == expendable


def test_servers_end_when_no_worker_is_left_to_serve(tmp_path: Path) -> None:
    commands = [worker(0, "pass", tmp_path), worker(0, SLEEP, tmp_path, role="server")]
    assert head(commands, leave_s=0.2).start().wait(30) == Outcome(0)


def test_servers_that_nobody_told_end_with_the_last_worker(tmp_path: Path) -> None:
    """A signal that asks to stop is for the workers."""
    told = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); print('up', flush=True); time.sleep(60)"
    commands = [worker(0, told, tmp_path), worker(0, SLEEP, tmp_path, role="server")]
    running = head(commands, grace_s=0.2).start()
    wait_for(lambda: "up" in log(tmp_path, 0))
    os.kill(os.getpid(), signal.SIGTERM)
    began = time.monotonic()
    assert running.wait(30).exit_code == 75
    assert time.monotonic() - began < 10


# The first failure


def test_error_with_traceback_is_told_last(tmp_path: Path) -> None:
    failing = "report_error('ValueError: no', traceback='Traceback:\\n  line 1\\nValueError: no'); sys.exit(1)"
    ended = run(tmp_path, SLEEP, failing, grace_s=0.2)
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
    ended = run(tmp_path, SLEEP, "report_error('loss is nan'); " + SLEEP, grace_s=0.2)
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
    ended = run(tmp_path, "import no_such_module", SLEEP, grace_s=0.1)
    assert ended.exit_code == 1
    assert "worker 0 failed first: exit 1" in ended.lines
    assert ended.lines[-2] == "ModuleNotFoundError: No module named 'no_such_module'"


def test_program_that_does_not_exist(tmp_path: Path) -> None:
    command = Command("worker", 1, "localhost", ("no-such-program",), {}, tmp_path / "worker-1.log")
    commands = [worker(0, SLEEP, tmp_path), command, worker(2, SLEEP, tmp_path)]
    ended = head(commands, grace_s=0.1).start().wait(30)
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


# Output


def test_log_holds_every_byte_and_survives_a_resume(tmp_path: Path) -> None:
    noisy = """
        os.write(1, b'x' * 300_000 + b'\\n'); os.write(2, b'\\xff\\n'); os.write(1, b'no end of line')
    """
    assert run(tmp_path, noisy) == Outcome(0)
    assert run(tmp_path, "os.write(1, b', resumed')") == Outcome(0)
    written = (tmp_path / "logs" / "worker-0.log").read_bytes()
    assert written == b"x" * 300_000 + b"\n\xff\nno end of line, resumed"


def test_console_shows_the_first_worker_and_warnings_of_the_others(tmp_path: Path) -> None:
    console = io.StringIO()
    run(
        tmp_path,
        "print('epoch 1'); print('WARNING slow', file=sys.stderr); print('partial', end='')",
        "print('epoch 1'); print('WARNING bad image'); print(' ERROR not at the start'); print('ERROR x', end='')",
        console=console,
    )
    lines = console.getvalue().splitlines()
    assert [line for line in lines if not line.startswith("[")] == ["epoch 1", "WARNING slow", "partial"]
    assert [line for line in lines if line.startswith("[")] == ["[worker 1] WARNING bad image", "[worker 1] ERROR x"]
    assert console.getvalue().endswith("\n")


def test_on_a_terminal_the_first_worker_draws_itself(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    with open(slave, "w") as console:
        ended = run(
            tmp_path,
            "print('plain'); fd = int(os.environ['SHOAL_CONSOLE_FD']); os.write(fd, b'drawn %d' % os.isatty(fd))",
            "print('SHOAL_CONSOLE_FD' in os.environ); print('WARNING w')",
            console=console,
        )
        shown = os.read(master, 4096).decode()
    os.close(master)
    assert ended == Outcome(0)
    assert "drawn 1" in shown and "[worker 1] WARNING w" in shown and "plain" not in shown
    assert log(tmp_path, 0) == "plain\n" and log(tmp_path, 1).startswith("False")


def test_console_that_went_away_does_not_end_the_job(tmp_path: Path) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    assert run(tmp_path, "print('a'); print('b')", console=Gone()) == Outcome(0)
    assert log(tmp_path, 0) == "a\nb\n"


def test_output_shows_a_line_without_end_in_pieces(tmp_path: Path) -> None:
    shown: list[str] = []
    output = Output(tmp_path / "log", shown.append)
    output.open()
    output.add(b"a" * 70_000)
    assert shown == ["a" * 70_000]
    output.add(b"b\r\nc")
    output.close()
    assert shown[1:] == ["b", "c"]


# Rendezvous and environment


def test_first_worker_accepts_on_the_socket_it_was_given(tmp_path: Path) -> None:
    accepting = """
        import socket
        peer, _ = socket.socket(fileno=int(os.environ['SHOAL_LISTEN_FD'])).accept()
        print(peer.recv(10).decode())
    """
    calling = """
        import socket
        assert 'SHOAL_LISTEN_FD' not in os.environ
        host, port = os.environ['SHOAL_RENDEZVOUS'].split(':')
        socket.create_connection((host, int(port))).sendall(b'hello')
    """
    assert run(tmp_path, accepting, calling).lines == ()
    assert log(tmp_path, 0) == "hello\n"


def test_rendezvous_takes_the_first_free_port_of_the_range(tmp_path: Path) -> None:
    for _ in range(20):  # until the port after a taken one is free
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except OSError:
                continue
            run(tmp_path, "print(os.environ['SHOAL_RENDEZVOUS'])", ports=range(port, port + 2))
            assert log(tmp_path, 0) == f"127.0.0.1:{port + 1}\n"
            return


def test_no_free_port_is_wrong_usage_and_starts_nothing(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"no free port in {port}-{port}"):
            run(tmp_path, SLEEP, ports=range(port, port + 1))
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGINT) == before


def test_environment_is_inherited_but_for_other_worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "MASTER_ADDR", "SHOAL_RANK", "SHOAL_LISTEN_FD", "DMLC_ROLE", "OTHER_RANK"):
        monkeypatch.setenv(name, "7")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    names = ("RANK", "MASTER_ADDR", "SHOAL_RANK", "DMLC_ROLE", "OTHER_RANK", "GLOO_SOCKET_IFNAME", "PYTHONUNBUFFERED")
    told = f"print(*(os.environ.get(name) for name in {names})); print(os.getppid() != {os.getpid()})"
    run(tmp_path, f"{told}; print(sys.stdin.read() == '')")
    gloo = "lo" if sys.platform == "linux" else "None"
    assert log(tmp_path, 0) == f"None None None None 7 {gloo} 1\nTrue\nTrue\n"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    run(tmp_path / "2", "print(os.environ['GLOO_SOCKET_IFNAME'])")
    assert log(tmp_path / "2", 0) == "eth7\n"


@pytest.mark.parametrize(
    "name",
    [
        *("SHOAL_NUM_RANKS", "SHOAL_REPORT_FD", "SHOAL_RENDEZVOUS"),
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_NAME", "MASTER_PORT"),
        *("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "SLURM_PROCID"),
        *("PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_CURRENT_ENDPOINT", "DMLC_PS_ROOT_URI"),
    ],
)
def test_words_of_another_world_are_not_inherited(name: str) -> None:
    assert inherited({name: "1"}) == {}


@pytest.mark.parametrize(
    "name", ["PATH", "SLURM_JOB_ID", "SHOAL_CACHE", "RANKING", "MY_WORLD_SIZE", "SHOAL_ROLE_MODEL", "ROLE_NAMES"]
)
def test_everything_else_is_inherited(name: str) -> None:
    assert inherited({name: "1"}) == {name: "1"}


def test_report_error_without_an_agent_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_REPORT_FD", raising=False)
    report_error("x")
    monkeypatch.setenv("SHOAL_REPORT_FD", "not a number")
    report_error("x")


@pytest.mark.parametrize("line", [b"", b"junk", b"[]", b"3", b'{"kind":"error"}', b'{"kind":"other","error":"x"}'])
def test_damaged_reports_are_left_out(line: bytes) -> None:
    assert Report.parse(line) is None


def test_long_tracebacks_keep_their_end(tmp_path: Path) -> None:
    ended = run(tmp_path, "report_error('e', traceback='x\\n' * 400_000 + 'last'); sys.exit(1)")
    assert ended.lines[-2] == "last"


# Nothing is left


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
    agent = head(commands, grace_s=0.3).start()
    began = time.monotonic()
    while len(tagged(tag)) < 2 and time.monotonic() - began < 20:  # a process has its tag only once it runs its program
        time.sleep(0.01)
    alive = len(tagged(tag))
    assert agent.wait(30).exit_code == 1
    assert alive >= 2
    assert tagged(tag) == []


@linux
def test_what_escaped_its_session_is_killed_and_its_pipe_is_not_waited_for(tmp_path: Path) -> None:
    escaping = """
        import subprocess
        child = subprocess.Popen(['setsid', '-f', 'sleep', '60'], start_new_session=True)
        child.wait()
        print('all of it')
    """
    tag = uuid.uuid4().hex
    began = time.monotonic()
    assert head([worker(0, escaping, tmp_path, TAG=tag)]).start().wait(30) == Outcome(0)
    assert time.monotonic() - began < 20
    assert log(tmp_path, 0) == "all of it\n"
    assert tagged(tag) == []


def test_bystanders_live_on(tmp_path: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        run(tmp_path, "sys.exit(1)", SLEEP, grace_s=0.0)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    run(tmp_path, "sys.exit(1)", SLEEP, grace_s=0.0)
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


# Signals

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


# Starts that come to nothing, and restarts


def test_told_to_stop_while_hosts_are_still_asked(tmp_path: Path) -> None:
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
    done = subprocess.run([sys.executable, "-c", driver, str(tmp_path)], env=env, capture_output=True, text=True)
    assert done.stdout == "130 told to stop before the start (SIGINT)\n", done.stderr


def restarting(folder: Path, script: str, restarts: int) -> tuple[Outcome, str]:
    """One worker that may start again; what was said meanwhile."""
    console = io.StringIO()
    role = Role("worker", 1, (sys.executable, "-c", PRELUDE + textwrap.dedent(script)), {"FOLDER": str(folder)})
    planned = plan_of(Job((role,), folder, max_restarts=restarts), "local")
    ended = Head(planned, local_line, console=console).start().wait(30)
    return ended, console.getvalue()


def test_a_failure_is_followed_by_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    ended, said = restarting(tmp_path, "g = os.environ['SHOAL_GENERATION']; print('at', g); sys.exit(int(g) < 2)", 2)
    assert ended == Outcome(0)
    assert log(tmp_path, 0) == "at 0\n\n--- restart 1 ---\nat 1\n\n--- restart 2 ---\nat 2\n"
    assert said.count("worker 0 failed first: exit 1") == 2
    assert "restart 2 of 2: 1 worker on localhost" in said


def test_the_last_failure_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    ended, _ = restarting(tmp_path, "print('at', os.environ['SHOAL_GENERATION']); sys.exit(4)", 1)
    assert ended.exit_code == 1
    assert ended.lines[:2] == ("worker 0 failed first: exit 4", "at 1")


def test_wrong_usage_and_a_stop_are_no_failure_to_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    for code in (2, 75):
        ended, said = restarting(tmp_path / str(code), f"sys.exit({code})", 3)
        assert ended.exit_code == code
        assert "restart" not in said


def test_a_killed_agent_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    script = "g = os.environ['SHOAL_GENERATION']; g == '0' and os.kill(os.getppid(), signal.SIGKILL); time.sleep(0.5)"
    ended, said = restarting(tmp_path, script, 1)
    assert ended == Outcome(0), (ended, said)
    assert "restart 1 of 1" in said
