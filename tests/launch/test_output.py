"""What people see of a job, and what its logs hold."""

from __future__ import annotations

import io
import os
import pty
from pathlib import Path

from tiny import log, run

from shoal.launch.job import Outcome
from shoal.launch.output import Output


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
