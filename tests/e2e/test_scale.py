"""`shoal scale` and `shoal why` as a person runs them."""

import json

import pytest
from program import run_shoal


@pytest.mark.slow
def test_a_study_that_was_interrupted_goes_on(tmp_path):
    out = tmp_path / "study"
    words = ["scale", "digits", "length=1ep", "--workers", "1,2", "--repeats", "1", "--out", str(out)]
    first = run_shoal(tmp_path, *words, "strategy.threads=1")
    assert first.code == 0, first.err
    assert "Fastest here" in first.out and "n = 1: too few repeats" in first.out
    rows = json.loads((out / "study.json").read_text())["rows"]
    assert [(row["workers"], row["n"]) for row in rows] == [(1, 1), (2, 1)]
    (out / "runs" / "ddp-2-1" / "metrics.jsonl").unlink()
    again = run_shoal(tmp_path, *words, "strategy.threads=1")
    assert "1 of 2 trainings are there already" in again.out and again.code == 0
    why = run_shoal(tmp_path, "why", str(out / "runs" / "ddp-2-1"))
    assert why.code == 0 and "start-up" in why.out and "100.0 %" in why.out


def test_why_of_what_is_no_run(tmp_path):
    told = run_shoal(tmp_path, "why", str(tmp_path))
    assert told.code == 2 and "not a run folder" in told.err
