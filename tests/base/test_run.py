"""Run: names, the claim of one process, and metrics that a crash has cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.base.errors import ShoalError, UsageError
from shoal.base.run import Run

CLAIMER = """
import sys, time
from pathlib import Path
from shoal.base.run import Run
lock = Run(Path(sys.argv[1])).claim()
print("claimed", flush=True)
time.sleep(60)
"""


def test_named_after_recipe_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "20260102-030405")
    first = Run.named_after("digits")
    assert first.folder == Path("runs/digits-20260102-030405")
    assert not first.folder.exists()
    first.make()
    second = Run.named_after("digits")
    second.make()
    assert second.folder.name == "digits-20260102-030405-2"
    assert Run.named_after("digits").folder.name == "digits-20260102-030405-3"
    assert Run.named_after("some/net.v2.yaml").folder.name == "net.v2-20260102-030405"


def test_a_second_claim_names_the_owner_until_it_ends(tmp_path: Path):
    run = Run(tmp_path / "run")
    lock = run.claim()
    with pytest.raises(UsageError, match=rf"in use by another run \(pid {os.getpid()} on .+\); wait for it or choose"):
        run.claim()
    lock.close()
    lock.close()
    run.claim().close()


def test_a_claim_ends_with_its_process(tmp_path: Path):
    run = Run(tmp_path / "run")
    with subprocess.Popen([sys.executable, "-c", CLAIMER, run.folder], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "claimed\n"
        with pytest.raises(UsageError, match=f"pid {owner.pid} on"):
            run.claim()
        owner.send_signal(signal.SIGKILL)
    run.claim().close()


def test_a_claim_is_not_inherited_by_programs_started_below(tmp_path: Path):
    run = Run(tmp_path / "run")
    lock = run.claim()
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        lock.close()
        run.claim().close()
        child.kill()


def test_places_that_cannot_hold_a_run(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        Run(tmp_path / "file" / "run").claim()


def test_steps_saved_in_order_and_nothing_else(tmp_path: Path):
    run = Run(tmp_path)
    assert run.steps_saved() == []
    for step in (400, 20, 1000):
        run.checkpoint(step).mkdir(parents=True)
    (run.checkpoints / ".step-00000999.77.aside").mkdir()
    (run.checkpoints / "step-12").mkdir()
    run.checkpoint(7).write_text("a file")
    assert run.steps_saved() == [20, 400, 1000]


def test_best(tmp_path: Path):
    run = Run(tmp_path)
    assert run.read_best() is None
    run.write_best(400, 0.98)
    assert run.read_best() == {"step": 400, "top1": 0.98}
    run.best.write_text("{")
    assert run.read_best() is None


@pytest.mark.parametrize("cut", [b'{"event": "tr', b'{"name": "\xc3', b"\x00\x00\x00"])
def test_a_last_line_cut_by_a_crash_is_left_out(tmp_path: Path, cut: bytes):
    run = Run(tmp_path)
    assert run.read_metrics() == []
    run.metrics_file.write_bytes('{"step": 1, "name": "é\u2028"}\n{"step": 2}\n'.encode() + cut)
    assert [event["step"] for event in run.read_metrics()] == [1, 2]


def test_a_bad_line_in_the_middle_is_told(tmp_path: Path):
    run = Run(tmp_path)
    run.metrics_file.write_text('{"step": 1}\n{"st\n{"step": 2}\n')
    with pytest.raises(ShoalError, match=r"metrics\.jsonl:2: not a JSON line"):
        run.read_metrics()
