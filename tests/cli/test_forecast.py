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


def runs(*speeds: tuple[int, float | None], **known: Any) -> str:
    """A study's file, as `shoal scale` writes it."""
    told = [{"strategy": "ddp", "workers": n, "images_per_s": speed, "run": f"runs/ddp-{n}-1", "state": "of no use"}
            for n, speed in speeds]  # fmt: skip
    return json.dumps({"recipe": "cifar10-resnet8", "weak": False, "rows": [], "runs": told, **known})


SPEEDS = ((1, 1000.0), (1, 1020.0), (2, 1900.0), (4, 3500.0), (4, None))


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "study.json").write_text(runs(*SPEEDS))
    (tmp_path / "runs" / "ddp-1-1").mkdir(parents=True)
    start = {"event": "start", "parameters": 78_042, "images_per_epoch": 50_000, "step": 0}
    (tmp_path / "runs" / "ddp-1-1" / "metrics.jsonl").write_text(json.dumps(start) + "\n")
    return tmp_path


def test_a_study_carried_on(study: Path) -> None:
    words = ("shards=auto", "-n", "8,64", "--from", str(study))
    said = run(*words).stdout
    assert "Calibrated by 4 runs of a study" in said
    assert "carried on; the network is the study's" in said
    small, large = json.loads(run(*words, "--json").stdout)["sizes"]
    assert 3500 < small["images_per_s"] < large["images_per_s"] < 64 * 1010
    assert small["low"] < small["images_per_s"] < small["high"]
    assert large["high"] / large["low"] > small["high"] / small["low"]
    assert small["hours"] == pytest.approx(50_000 / small["images_per_s"] / 3600, rel=0.01)


def test_a_weak_study_is_of_another_kind(study: Path) -> None:
    assert "leave out --weak" in refused("-n", "8", "--weak", "--from", str(study))
    (study / "study.json").write_text(runs(*SPEEDS, weak=True))
    assert "add --weak" in refused("-n", "4", "--from", str(study))
    told = json.loads(run("-n", "64", "--weak", "--from", str(study), "--json").stdout)
    assert told["sizes"][0]["efficiency"] > 0.7


def test_a_study_with_another_link(study: Path) -> None:
    words = ("-n", "2,4", "--from", str(study), "--json", "--link")
    fast, slow = (json.loads(run(*words, link).stdout)["sizes"] for link in ("100Gbps", "10Mbit"))
    assert fast[1]["images_per_s"] == pytest.approx(4 * 1010, rel=0.03)
    assert fast[1]["binds"] == "compute" and slow[1]["binds"] == "exchange"
    assert slow[1]["images_per_s"] < fast[1]["images_per_s"] / 4


def test_a_study_s_own_words_are_found(study: Path) -> None:
    """However a strategy is put: with what is so by default, with threads, or not at all."""
    words = ("-n", "8", "shards=auto", "--from", str(study), "--strategies")
    ways = {
        "ddp:deterministic=true": "ddp:deterministic=true",
        "ps:mode=sync,threads=1": "ps",
        "local_sgd": "local_sgd:every=8",
    }
    told = json.loads(runs(*SPEEDS))
    for held, asked in ways.items():
        told["runs"] = [{**run, "strategy": held} for run in told["runs"]]
        (study / "study.json").write_text(json.dumps(told))
        assert json.loads(run(*words, asked, "--json").stdout)["sizes"][0]["images_per_s"] > 3500


def test_one_worker_s_speed_is_the_strategy_s_own(study: Path) -> None:
    told = json.loads(runs(*SPEEDS))
    told["runs"] += [{**run, "strategy": "ps", "images_per_s": 500.0} for run in told["runs"] if run["workers"] == 1]
    (study / "study.json").write_text(json.dumps(told))
    words = ("-n", "1", "--from", str(study), "--link", "1Gbps", "--json", "--strategies")
    assert json.loads(run(*words, "ddp").stdout)["sizes"][0]["images_per_s"] == pytest.approx(1010)


def test_runs_with_other_numbers_of_servers_are_kept_apart(study: Path) -> None:
    told = json.loads(runs(*SPEEDS))
    told["runs"] = [{**run, "strategy": "ps", "servers": 1} for run in told["runs"]]
    told["runs"] += [
        {**run, "images_per_s": 9.0 * run["workers"], "servers": 2} for run in told["runs"] if run["images_per_s"]
    ]
    (study / "study.json").write_text(json.dumps(told))
    words = ("shards=auto", "-n", "8", "--from", str(study), "--strategies", "ps", "--json", "--servers")
    one, two = (json.loads(run(*words, count).stdout)["sizes"][0]["images_per_s"] for count in ("1", "2"))
    assert one > 3500 and two == pytest.approx(72, rel=0.01)
    assert "no finished run with 3 servers" in refused(*words, "3")


def test_a_study_of_other_work_is_told(study: Path) -> None:
    (study / "study.json").write_text(runs(*SPEEDS, overrides=["data.limit=10000"]))
    assert "was changed by data.limit=10000, this one by shards=auto" in run(
        "-n", "8", "shards=auto", "--from", str(study)
    ).stdout.replace("\n", " ")


def test_studies_that_do_not_help(study: Path, tmp_path: Path) -> None:
    words, path = ("-n", "4", "--from", str(study)), study / "study.json"
    assert "no study.json there" in refused("-n", "2", "--from", str(tmp_path / "nowhere"))
    assert "--latency without --link" in refused(*words, "--latency", "1us")
    assert "no finished run with ps (strategies there: ddp)" in refused(*words, "strategy=ps")
    assert "no finished run with ddp:bucket_mb=5 (" in refused(*words, "--strategies", "ddp:bucket_mb=5")
    for text, more, told in (
        (runs((2, 1900.0), (2, 1950.0)), (), "a law needs two sizes or more, or say --link"),
        (runs((2, 1900.0)), ("--link", "1Gbps"), "a run of one worker is needed"),
        (runs((1, None)), (), "no finished run with ddp (strategies there: none)"),
        (runs(*SPEEDS, recipe="digits"), (), "a study of digits, not of cifar10-resnet8"),
        (runs((0, 1900.0)), (), "0 workers at 1900 images/s cannot be"),
        *((broken, (), "not a study") for broken in ("{", "[]", '{"recipe": "x"}', runs((1, 2.0), weak="no"))),
    ):
        path.write_text(text)
        assert told in refused(*words, *more)


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
        (["-n", "2", "--link", ""], "--link : no rate"),
        (["-n", "2", "--link", "1Gbps", "--rate", ""], "--rate : no speed"),
        (["-n", "2", "--link", "1Gbps", "--latency", ""], "--latency : no time"),
        (["-n", "2", "--link", "1Gbps", "--latency", f"{'9' * 400}s"], "too long"),
        (["-n", "2", "--link", "1Gbps", "--slow", "nan"], "--slow nan"),
        (["-n", "2", "--link", "1Gbps", "--slow", "inf"], "--slow inf"),
        (
            ["-n", "1000", "shards=auto", "batch=1000", "--link", "1Gbps", "--per-host", "1000"],
            "1000 workers cannot be probed on",
        ),
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
