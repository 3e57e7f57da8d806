"""`shoal list` and `shoal show`: what a person reads, what a pipe gets, and that torch stays away."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.base.errors import UsageError
from shoal.cli import shoal
from shoal.cli.list import KINDS
from shoal.recipe.find import FILES
from shoal.recipe.load import load, parse
from shoal.recipe.part import SEAMS, field_help, kinds, names

START = {
    "event": "start", "time": 0.0, "step": 0, "recipe": "digits", "model": "digits-cnn", "parameters": 33000,
    "num_ranks": 2, "strategy": "ddp", "batch": 64, "shards": 4, "images_per_epoch": 1438, "epochs": 10.0,
}  # fmt: skip


def run(*words: str) -> Result:
    return CliRunner().invoke(shoal, words, catch_exceptions=False)


def refused(*words: str) -> str:
    with pytest.raises(UsageError) as error:
        run(*words)
    return str(error.value)


def test_list_alone_names_every_kind():
    lines = run("list").stdout.splitlines()
    assert [line.split()[0] for line in lines[: len(KINDS)]] == list(KINDS)
    assert set(SEAMS) <= set(KINDS)


def test_recipes_with_their_titles():
    text = run("list", "recipes").stdout
    assert re.search(r"^digits +Handwritten digits", text, re.MULTILINE)
    assert "Reproduces" not in text


def test_models_and_the_way_to_timms():
    text = run("list", "models").stdout
    assert "cifar-resnet20\n" in text
    assert "timm.list_models(" in text
    assert "drop_path: 0.0 (a number >= 0 and < 1)" in text


@pytest.mark.parametrize("seam", SEAMS)
def test_a_seam_shows_each_option_once_with_its_help(seam: str):
    text = run("list", seam).stdout
    assert max(map(len, text.splitlines())) <= 100
    shown = " ".join(text.split())
    for name, part in kinds(seam).items():
        assert f"\n{name}: " in text
        for key, told in field_help(part).items():
            assert f"\n  {key}:" in text
            assert " ".join(told.split()) in shown
    for line in (line for line in text.splitlines() if line.startswith("  lr:")):
        assert line == "  lr: (a number >= 0; must be given)"
        assert text.count(line) == 1


def test_one_part_alone_with_the_options_it_shares():
    text = run("list", "optims", "sgd").stdout
    assert "adamw: " not in text
    assert "  momentum: 0.9 (a number >= 0 and < 1)\n" in text
    assert "  lr_batch: null (a whole number >= 1 or null)\n" in text


def test_options_of_a_group_are_written_as_overrides_are():
    assert "  augment.pad_mode: constant (constant | edge | reflect)\n" in run("list", "sources").stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["list", "optim"], "nothing called 'optim' to list; did you mean 'optims'?"),
        (["list", "optims", "sdg"], "no optim called 'sdg'; did you mean 'sgd'?"),
        (["list", "strategies", "ddq"], "no strategy called 'ddq'; did you mean 'ddp'?"),
        (["list", "recipes", "digits"], "shoal list recipes takes no name; to see one: shoal show digits"),
        (["show"], "which recipe? `shoal list recipes`"),
        (["show", "digit"], "no recipe called 'digit'; did you mean 'digits'?"),
        (["show", "digits", "batch=x"], "command line: batch: expected a whole number"),
        (["show", "--schema", "digits"], "--schema is the same for all recipes"),
        (["report", "nowhere"], "nowhere: no such folder; to find runs: shoal list runs FOLDER"),
        (["report", "/"], "/: not a run; to find runs"),
    ],
)
def test_what_is_refused_says_what_would_be_right(words: list[str], told: str):
    assert told in refused(*words)


def test_show_prints_a_file_that_trains_the_same():
    result = run("show", "digits", "optim.lr=0.5")
    assert result.stdout.startswith((FILES / "digits.yaml").read_text().partition("\ndata:")[0])
    assert parse(result.stdout, "shown").recipe == load("digits", ["optim.lr=0.5"]).recipe
    assert result.stderr == ""


def test_notes_go_to_stderr():
    result = run("show", "digits", "optim=adamw", "optim.lr=0.5")
    assert result.stderr.startswith("optim.name=adamw: the options of sgd were dropped (")
    assert "dropped" not in result.stdout


def test_a_run_folder_shows_its_result(tmp_path: Path):
    (tmp_path / "recipe.yaml").write_text(run("show", "digits").stdout)
    assert run("show", str(tmp_path)).stdout == run("show", "digits").stdout  # nothing reported yet
    (tmp_path / "metrics.jsonl").write_text(json.dumps(START) + "\n")
    assert "33,000 parameters" in run("show", str(tmp_path)).stdout
    assert "is a run, and what it trained cannot be changed" in refused("show", str(tmp_path), "batch=3")


def test_schema_is_json():
    assert json.loads(run("show", "--schema").stdout)["title"] == "Shoal recipe"


DRIVER = """
import sys
from shoal.cli import main
try:
    main()
except SystemExit as end:
    heavy = {"torch", "timm", "torchvision", "numpy", "matplotlib"} & sys.modules.keys()
    print(f"\\nexit {end.code}, heavy: {sorted(heavy)}", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["train", "--help"], 0),
        (["list"], 0),
        (["list", "recipes"], 0),
        (["list", "models"], 0),
        *((["list", seam], 0) for seam in SEAMS),
        (["show", "digits"], 0),
        (["show", "--schema"], 0),
        (["show", "digit"], 2),
        (["list", "optim"], 2),
        (["train", "digit"], 2),
        (["train", "digits", "batch=x", "lenght=3"], 2),
        (["lst"], 2),
        (["report", "--help"], 0),
        (["report"], 2),
        (["report", "digits"], 2),
        (["list", "runs", "nowhere"], 2),
    ],
    ids=str,
)
def test_exit_codes_and_nothing_heavy_imported(words: list[str], code: int):
    done = subprocess.run([sys.executable, "-c", DRIVER, *words], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == f"exit {code}, heavy: []"
    assert "Traceback" not in done.stderr


def test_listing_names_imports_no_part():
    code = "import sys, shoal.recipe.part as p; print(p.names('optims'), 'shoal.step.optims.sgd' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"{names('optims')} False\n"
