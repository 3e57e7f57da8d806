"""`shoal import` as people type it: what it writes, what it prints, how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from old_jobs import CONF
from old_weights import written

from shoal.base.errors import UsageError
from shoal.cli import shoal
from shoal.recipe.load import load


def run(*words: str) -> Result:
    return CliRunner().invoke(shoal, ["import", *words], catch_exceptions=False, standalone_mode=False)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("conf.yaml").write_text(CONF)


def test_it_writes_a_recipe_and_prints_the_command():
    result = run("--cards", "4", "conf.yaml", "-o", "Global.epochs=3")
    assert result.stdout.splitlines() == [
        "recipe   conf.shoal.yaml",
        "train    shoal train conf.shoal.yaml --run ./output -n 4",
    ]
    assert "note: batch 64 per card x 4 = batch 256" in result.stderr
    recipe = load("conf.shoal.yaml").recipe
    assert (recipe.batch, str(recipe.length)) == (256, "3ep")
    assert "#   shoal train conf.shoal.yaml --run ./output -n 4\n" in Path("conf.shoal.yaml").read_text()


def test_it_prints_it_instead_and_names_what_is_left_out():
    Path("conf.yaml").write_text(CONF.replace("Metric:", "Slim: {quant: {name: pact}}\nMetric:"))
    result = run("--out", "-", "conf.yaml")
    assert "#   - Slim: models are neither quantised nor pruned in training" in result.stdout
    assert "left out: conf.yaml:" in result.stderr
    assert not list(Path().glob("*.shoal.yaml"))


def test_nothing_is_overwritten_unless_told():
    Path("mine.yaml").write_text("mine")
    with pytest.raises(UsageError, match=r"mine\.yaml: is there already"):
        run("--out", "mine.yaml", "conf.yaml")
    assert Path("mine.yaml").read_text() == "mine"
    run("--out", "mine.yaml", "--force", "conf.yaml")
    assert load("mine.yaml").recipe.model.name == "resnet50d"


def test_all_faults_at_once_and_nothing_written():
    Path("conf.yaml").write_text(
        CONF.replace("epochs: 120", "epochs: 120\n  eepochs: 3").replace("Metric:", "Metrics:")
    )
    with pytest.raises(UsageError) as error:
        run("conf.yaml")
    told = str(error.value).splitlines()
    assert [line.split(": ")[1] for line in told] == ["Global.eepochs", "Metrics"]
    assert "left out: conf.yaml:5: Global.eepochs: unknown key" in run("--skip-unknown", "conf.yaml").stderr


def test_a_value_that_no_recipe_may_have_is_told():
    with pytest.raises(
        UsageError, match=r"conf.yaml: becomes no recipe: optim.momentum: expected a number >= 0 and < 1"
    ):
        run("conf.yaml", "-o", "Optimizer.momentum=2")
    assert not list(Path().glob("*.shoal.yaml"))


def test_what_cannot_be_trained_ends_with_1():
    result = run("python", "main.py", "-a", "squeezenet1_0", "IMAGENET")
    assert result.return_value == 1
    assert result.stderr.endswith("shoal: main.py: cannot be trained here; nothing was written\n")
    assert list(Path().iterdir()) == [Path("conf.yaml")]


def test_weights_have_a_command_of_their_own():
    Path("a.params").write_bytes(written({"w": np.ones(2, "<f4")}))
    with pytest.raises(UsageError, match=r"--to b.bin: expected a name that ends in .safetensors"):
        run("weights", "a.params", "--to", "b.bin")
    with pytest.raises(UsageError, match="which runs whatever is in it"):
        run("weights", "a.pdparams")
    assert "--model NAME" in run("weights", "--help").stdout


def test_help_and_a_recipe_come_without_torch():
    code = (
        "import sys; from shoal.cli import shoal\n"
        "shoal(['import', '--out', '-', 'conf.yaml'], standalone_mode=False)\n"
        "shoal(['import', '--help'], standalone_mode=False)\n"
        "assert not {'torch', 'timm', 'torchvision'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
