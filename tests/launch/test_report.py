"""What failing processes report to their agent."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import run

from shoal.launch.report import Report, report_error


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
