"""`shoal forecast`: what a person gets, what is refused in one line, and that torch stays away from refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shoal.base.errors import UsageError
from shoal.cli import shoal

DRIVER = """
import sys
from shoal.cli import main
try:
    main()
except SystemExit as end:
    print("exit", end.code, "heavy", sorted({"torch", "numpy", "matplotlib"} & sys.modules.keys()))
"""


def run(*words: str) -> Result:
    return CliRunner().invoke(shoal, ["forecast", "cifar10-resnet8", *words], catch_exceptions=False)


def refused(*words: str) -> str:
    with pytest.raises(UsageError) as error:
        run(*words)
    assert "\n" not in str(error.value)
    return str(error.value)


def row(workers: int, speed: float | None, **known: Any) -> dict[str, Any]:
    held = {"recipe": "cifar10-resnet8", "strategy": "ddp", "workers": workers, "servers": 0, "images_per_s": speed,
            "batch": 128, "parameters": 78_042, "more": "is of no use"}  # fmt: skip
    return {**held, **known}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    rows = [row(1, 1000.0), row(1, 1020.0), row(2, 1900.0), row(4, 3600.0), row(4, None), row(2, 9.0, recipe="digits")]
    (tmp_path / "study.json").write_text(json.dumps({"rows": rows}))
    return tmp_path


def test_a_study_carried_on(study: Path) -> None:
    said = run("-n", "8,64", "--weak", "--from", str(study)).stdout
    assert "Calibrated by 4 runs of a study" in said
    assert "carried on; the network is the study's" in said
    told = json.loads(run("-n", "8,64", "--weak", "--from", str(study), "--json").stdout)
    small, large = told["sizes"]
    assert small["images_per_s"] < large["images_per_s"] < 64 * 1010
    assert small["low"] < small["images_per_s"] < small["high"]
    assert large["high"] / large["low"] > small["high"] / small["low"]


def test_a_study_with_another_link(study: Path) -> None:
    words = ("-n", "2,4", "--from", str(study), "--json", "--link")
    fast, slow = (json.loads(run(*words, link).stdout)["sizes"] for link in ("100Gbps", "10Mbit"))
    assert fast[1]["images_per_s"] == pytest.approx(4 * 1010, rel=0.03)
    assert fast[1]["binds"] == "compute" and slow[1]["binds"] == "exchange"
    assert slow[1]["images_per_s"] < fast[1]["images_per_s"] / 4


def test_studies_that_do_not_help(study: Path, tmp_path: Path) -> None:
    here = str(study)
    assert "no study.json there" in refused("-n", "2", "--from", str(tmp_path / "nowhere"))
    assert "no finished run of cifar10-resnet8 with ps:mode=sync" not in refused(
        "-n", "2", "--from", here, "--latency", "1us"
    )
    (study / "study.json").write_text(json.dumps({"rows": [row(2, 1900.0), row(2, 1950.0)]}))
    assert "a law needs two sizes or more, or say --link" in refused("-n", "4", "--from", here)
    assert "a run of one worker is needed" in refused("-n", "4", "--from", here, "--link", "1Gbps")
    (study / "study.json").write_text(json.dumps({"rows": [row(2, 1900.0, recipe="digits")]}))
    assert "(recipes there: digits)" in refused("-n", "4", "--from", here)
    (study / "study.json").write_text(json.dumps({"rows": [row(0, 1900.0)]}))
    assert "0 workers at 1900 images/s cannot be" in refused("-n", "4", "--from", here)
    for broken in ("{", "[]", '{"rows": [{"images_per_s": 3}]}', '{"rows": 7}'):
        (study / "study.json").write_text(broken)
        assert "not a study's rows" in refused("-n", "4", "--from", here)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-n", "2"], "--link: how fast is a host's port?"),
        (["-n", "2", "--link", "25GBps"], "--link 25GBps: no rate"),
        (["-n", "2", "--link", "1Gbps", "--latency", "20"], "--latency 20: no time"),
        (["-n", "two", "--link", "1Gbps"], "--workers two"),
        (["-n", "2", "--link", "1Gbps", "--rate", "fast"], "--rate fast: no speed"),
        (["-n", "2", "--link", "1Gbps", "--rate", "9", "--from", "x"], "leave one out"),
        (["-n", "2", "--link", "1Gbps", "-s", "2"], "strategy ddp has no servers"),
        (["-n", "8", "--link", "1Gbps"], "8 workers for 4 shards"),
        (["-n", "2", "--link", "1Gbps", "strategy=dp"], "strategy dp has one worker, not 2"),
    ],
)
def test_refused_in_one_line(words: list[str], told: str) -> None:
    assert told in refused(*words)


def test_torch_stays_away_from_refusals_and_studies(study: Path) -> None:
    words = ["forecast", "cifar10-resnet8", "-n", "2", "--link", "1Gbps"]
    for more, code, heavy in ((["--latency", "x"], 2, []), (["--from", str(study)], 0, ["numpy"])):
        done = subprocess.run([sys.executable, "-c", DRIVER, *words, *more], capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == f"exit {code} heavy {heavy}", done.stderr
    done = subprocess.run([sys.executable, "-c", DRIVER, "forecast", "--help"], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "exit 0 heavy []"


@pytest.mark.slow
def test_a_rate_in_the_place_of_the_probe() -> None:
    said = run("data=synthetic", "-n", "1,4", "--link", "1Gbps", "--rate", "1000", "--json").stdout
    told = json.loads(said)
    assert told["calibration"]["parameters"] > 78_000
    assert told["sizes"][0]["images_per_s"] == pytest.approx(1000)
    assert 3 < told["sizes"][1]["speedup"] < 4
    assert any("nothing was timed" in note for note in told["notes"])
    data_missing = json.loads(run("data.path=nowhere", "-n", "2", "--link", "1Gbps", "--rate", "9", "--json").stdout)
    assert data_missing["sizes"][0]["hours"] is None
