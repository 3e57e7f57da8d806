"""`shoal predict`, `shoal eval` and `shoal export` as people and scripts read them."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from a_checkpoint import save_run
from shoal.base.errors import ShoalError, UsageError
from shoal.base.run import Run
from shoal.cli import shoal
from small_images import encoded, picture


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return save_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    (folder / "more").mkdir()
    for number, name in enumerate(("a.png", "c.PNG", "more/d.png")):
        (folder / name).write_bytes(encoded(picture(number, 8)))
    (folder / "b.jpg").write_bytes(b"no image")
    (folder / "notes.txt").touch()
    return folder


def called(*words: str | Path) -> Result:
    return CliRunner().invoke(shoal, [str(word) for word in words], standalone_mode=False)


def test_a_line_for_each_image_and_bad_ones_told(run: Run, images: Path):
    result = called("predict", run.folder, images, "--top", "2")
    assert result.return_value == 1
    lines = result.stdout.splitlines()
    assert [Path(line.split()[0]).name for line in lines] == ["a.png", "c.PNG", "d.png"]
    assert all(re.fullmatch(r"\S+ +\d +\d+\.\d%  \d +\d+\.\d%", line) for line in lines)
    assert f"BAD: {images}/b.jpg is no image in a known format (begins with 6e 6f 20 69 6d 61 67 65)" in result.stderr
    assert re.search(r"^4 images in .* images/s\); 1 could not be read$", result.stderr, re.MULTILINE)


def test_json_lines(run: Run, images: Path):
    result = called("predict", run.folder, images, "--json", "--top", "99")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [Path(row["image"]).name for row in rows] == ["a.png", "b.jpg", "c.PNG", "d.png"]
    assert rows[1]["error"].startswith("is no image") and "predictions" not in rows[1]
    assert sum(guess["probability"] for guess in rows[0]["predictions"]) == pytest.approx(1)
    assert {guess["class"] for guess in rows[0]["predictions"]} == set("0123456789")


def test_a_csv_table(run: Run, images: Path, tmp_path: Path):
    table = tmp_path / "new" / "predictions.csv"
    result = called("predict", run.folder, images / "a.png", images / "b.jpg", "--out", table)
    assert result.return_value == 1 and result.stdout == ""
    with open(table, newline="") as file:
        good, bad = csv.DictReader(file)
    assert good["image"] == f"{images}/a.png" and good["error"] == ""
    assert float(good["probability_1"]) >= float(good["probability_2"]) >= float(good["probability_3"]) > 0
    assert bad["class_1"] == "" and bad["error"].startswith("is no image")
    assert called("predict", run.folder, images / "a.png", "--out", table).return_value == 0
    assert len(table.read_text().splitlines()) == 2


def test_paths_that_are_wrong_are_told_before_torch_is_imported(run: Run, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.png").touch()
    cases = [
        (["predict", "no", "x.png"], "no: no such folder"),
        (["predict", str(run.folder), "no.png"], "no.png: no such file or folder"),
        (["predict", str(run.folder), "empty"], "empty: holds no images (.jpg, "),
        (["predict", str(run.folder), "x.png", "--out", "empty"], "--out empty: is a folder; name the table's file"),
        (["eval", "no"], "no: no such folder"),
        (["eval", str(run.folder), "data.limt=3"], "command line: data.limt: unknown key; did you mean 'limit'?"),
        (["export", "empty", "--to", "onnx"], "empty: neither a checkpoint nor a run folder"),
        (["export", str(run.folder), "--to", "safetensors", "--int8"], "--int8 is for --to onnx, not for safetensors"),
    ]
    script = f"""
import sys
from shoal.base.errors import UsageError
from shoal.cli import shoal
for words, told in {cases!r}:
    try:
        shoal(words, standalone_mode=False)
    except UsageError as error:
        assert str(error).startswith(told), (words, str(error))
    else:
        raise AssertionError(words)
assert not {{"torch", "timm", "torchvision"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)


def test_eval_shows_classes(run: Run):
    lines = called("eval", run.folder, "--raw").stdout.splitlines()
    assert lines[0].endswith("step-00000005 (step 5, weights as trained)")
    assert re.fullmatch(r"top-1 +0\.\d{4}  \(\d+ correct, n = 100\)", lines[1])
    assert lines[5].split() == ["class", "n", "top-1", "top-5", "most", "mistaken", "for"]
    assert len(lines[7:]) == 10


def test_eval_shows_the_worst_of_many_classes(tmp_path: Path):
    from shoal.cli.eval import _text

    rows = [
        {"class": f"c{number}", "count": 4, "top1": number / 20, "top5": 1.0, "mistakes": 0, "mistaken_for": None}
        for number in range(20)
    ]
    found = {"checkpoint": "x", "step": 1, "averaged": True, "tta": "flip", "outputs": 20, "count": 80, "loss": 1.0}
    text = _text({**found, "top1": 0.5, "top5": 1.0, "correct1": 40, "correct5": 80, "classes": rows[::-1]})
    assert "(step 1, weights moving average; mean of each image and its mirror image)" in text
    assert re.findall(r"^ *(c\d+) ", text, re.MULTILINE) == [f"c{number}" for number in range(10)]
    assert text.endswith("The 10 worst of 20 classes; all of them: --json")


def test_eval_of_a_damaged_checkpoint(tmp_path: Path):
    damaged = save_run(tmp_path / "run")
    (damaged.checkpoint(5) / "model.safetensors").write_bytes(b"")
    result = called("eval", damaged.folder)
    assert isinstance(result.exception, ShoalError) and not isinstance(result.exception, UsageError)
    assert re.search(r"step-00000005: damaged checkpoint: model\.safetensors has 0 of \d+ bytes", str(result.exception))


def test_export_takes_its_name_from_the_recipe(run: Run, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = called("export", run.folder, "--to", "safetensors")
    assert result.return_value is None and result.exception is None, result.exception
    assert [path.name for path in tmp_path.iterdir()] == ["small.safetensors"]
    assert re.search(r"^difference  0 at most, of any logit, n = 64 validation images$", result.stdout, re.MULTILINE)
