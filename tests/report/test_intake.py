"""What a measurement of input says."""

from __future__ import annotations

import json

import pytest

from shoal.report.intake import BATCHES, Intake


def intake(one: float, two: float, model: float, *, threads: int = 1, model_threads: int = 2, cores: int = 2) -> Intake:
    rates = {("read", 1): (9000.0, 9500.0, 9100.0), ("read", 2): (9000.0,) * 3}
    rates |= {(BATCHES, 1): (one, 1.1 * one, 0.9 * one), (BATCHES, 2): (two,) * 3}
    return Intake(rates, (model,) * 3, threads, model_threads, cores)


def test_images_must_come_as_fast_as_the_model_takes_them():
    found = intake(500, 1000, 2000, model_threads=1, cores=64)
    assert found.kept(1) == pytest.approx(0.25) and found.kept(2) == pytest.approx(0.5) and found.bound
    assert found.verdict == (
        "input-bound: the model takes 2,000 images/s, data.threads=1 bring 500: 25 % of its speed is left; "
        "data.threads=2 would leave 50 %"
    )
    slow = intake(500, 505, 2000, model_threads=1, cores=64)
    assert slow.verdict.endswith("and more threads do not help here; smaller images would, packed beforehand")


def test_input_takes_part_of_the_cores_that_the_model_would_have():
    # 100 images cost 100 x 2 ms of a core, and two cores of the model for a second.
    assert intake(500, 1000, 100).kept(1) == pytest.approx(2 / 2.2)
    assert intake(500, 1000, 100).bound
    found = intake(500, 1000, 10)
    assert found.kept(1) == pytest.approx(2 / 2.02) and not found.bound
    assert found.verdict == (
        "not input-bound: the model takes 10 images/s, data.threads=1 bring 500: 99 % of its speed is left"
    )
    assert intake(500, 1000, 100, cores=4).kept(1) == 1.0


def test_text_json_and_picture(tmp_path):
    found = intake(500, 1000, 100)
    assert "9,100 (9,000 to 9,500)" in found.text() and found.text().endswith(found.verdict)
    told = json.loads(json.dumps(found.plain()))
    assert told["rates"][2] == {"stage": BATCHES, "threads": 1, "images_per_s": 500, "turns": [500, 550, 450]}
    assert told["input_bound"] and told["kept"] == pytest.approx(2 / 2.2)
    found.picture(tmp_path / "io.png", "a")
    assert (tmp_path / "io.png").stat().st_size > 5000
