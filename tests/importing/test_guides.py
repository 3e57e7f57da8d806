"""docs/from-*.md: every old command imports, and every command of Shoal's runs, with a handful of made-up images.

Trainings of the pages run dry: planned, checked, not started. One of each page's recipes is trained, and what the pages
do with a run afterwards is done with that one.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from old_jobs import CONF, found
from old_weights import as_mxnet, example_names, made, written

from shoal.cli import shoal
from small_images import jpeg, write_rec

sys.path.append(str(Path(__file__).parents[1] / "e2e"))
from warm import warm

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("from-mxnet.md", "from-pytorch.md", "from-paddleclas.md")
ELSEWHERE = {"im2rec.py": "data", "eval.py": "eval", "infer.py": "predict", "export_model.py": "export"}
"""Old scripts that do not train, and the verb of Shoal's that stands beside each."""


def commands(page: str, kind: str) -> list[list[str]]:
    """The lines of the page's blocks of one kind: `sh` the old world's, without a word Shoal's."""
    inside, lines = None, []
    for line in (DOCS / page).read_text().splitlines():
        if line.startswith("```"):
            inside = line[3:] if inside is None else None
        elif inside == kind:
            lines.append(shlex.split(line))
    return lines


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, weights, a run of two steps: what the commands of the pages look at."""
    folder = tmp_path_factory.mktemp("guides")
    for split in ("train", "val"):
        for number, name in enumerate(("cat", "dog")):
            for root in ("IMAGENET", "ILSVRC2012", "images", "photos"):
                (folder / root / split / name).mkdir(parents=True, exist_ok=True)
                (folder / root / split / name / f"{split}{number}.jpg").write_bytes(jpeg(number))
    shutil.rmtree(folder / "ILSVRC2012" / "val")
    (folder / "ILSVRC2012" / "val").mkdir()
    (folder / "ILSVRC2012" / "val" / "a.JPEG").write_bytes(jpeg(1))
    (folder / "ILSVRC2012" / "val_list.txt").write_text("val/a.JPEG 1\n")
    (folder / "ResNet50_vd.yaml").write_text(CONF)
    (folder / "secret").write_text("0" * 64)
    (folder / "secret").chmod(0o600)
    (folder / "r8-0005.params").write_bytes(written(as_mxnet("cifar-preresnet8", example_names(1))))
    torch.save({"state_dict": made("cifar-resnet8").state_dict(), "epoch": 3}, folder / "checkpoint.pth.tar")
    small = [
        "model=cifar-resnet8",
        "data.augment.size=32",
        "data.augment.resize=32",
        "data.image_size=32",
        "length=2st",
    ]
    runner = CliRunner()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        runner.invoke(
            shoal, ["import", "python", "main.py", "--gpu", "0", "-b", "4", "IMAGENET"], catch_exceptions=False
        )
        trained = warm(folder, "train", "imagenet-resnet18.yaml", *small, "--run", folder / "output")
        assert trained.code == 0, trained
    (folder / "runs").mkdir()
    shutil.copytree(folder / "output", folder / "runs" / "r50")
    return folder


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("SHOAL_SECRET_FILE", str(place / "secret"))
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize("page", PAGES)
def test_every_old_command_imports_or_has_a_verb(page: str):
    old, new = commands(page, "sh"), commands(page, "")
    assert len(old) >= 10
    for words in old:
        script = next(Path(word).name for word in words if word.endswith(".py") and "launch" not in word)
        if script in ELSEWHERE:
            assert any(ours[1] == ELSEWHERE[script] for ours in new), words
            continue
        findings = found(*words)
        if "--evaluate" in words:
            assert "shoal eval" in findings.lacking[0].why
        else:
            assert not findings.wrong and not findings.lacking, (words, findings)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_shoals_runs(page: str):
    found_verbs = set()
    for words in commands(page, ""):
        if words[0] == "torchrun":  # another program's; what it starts is a command as the others
            words = words[words.index("shoal") :]
        assert words[0] == "shoal"
        verb, rest = words[1], words[2:]
        found_verbs.add(verb)
        if verb == "train":
            rest = ["--dry-run", *rest]
            rest += ["--run", "elsewhere"] if "--run" not in rest else []
        elif verb == "import" and rest[0] != "weights":
            rest = ["--force", *rest]
        elif verb == "import" and "--model" in rest:
            rest[rest.index("--model") + 1] = "cifar-resnet8"
        if verb in ("eval", "predict", "export"):
            done = warm(Path.cwd(), verb, *rest)
            assert done.code == 0, (words, done)
        else:
            result = CliRunner().invoke(shoal, [verb, *rest], catch_exceptions=False, standalone_mode=False)
            assert result.return_value in (0, None) and result.exit_code == 0, (words, result.output)
    assert {"import", "train"} < found_verbs


def test_the_recipes_that_the_pages_import_are_those_that_they_train():
    for page in PAGES:
        first, second = commands(page, "")[:2]
        result = CliRunner().invoke(
            shoal, ["import", "--force", *first[2:]], catch_exceptions=False, standalone_mode=False
        )
        assert f"recipe   {second[2]}" in result.stdout
        trained = next(line for line in result.stdout.splitlines() if line.startswith("train"))
        assert set(second) <= set(shlex.split(trained))


@pytest.mark.parametrize(
    ("words", "recipe"),
    [
        (["python", "train_cifar10.py", "--network", "resnet", "--num-layers", "8", "--data-train", "t.rec",
          "--data-val", "v.rec", "--batch-size", "4"], "cifar10-resnet8.yaml"),
        (["--cards", "2", "ResNet50_vd.yaml"], "ResNet50_vd.shoal.yaml"),
    ],
)  # fmt: skip
def test_what_was_imported_trains(place: Path, words: list[str], recipe: str):
    for name in ("t", "v"):
        write_rec(place / f"{name}.rec", [jpeg(number) for number in range(4)], [0, 1, 0, 1])
    CliRunner().invoke(shoal, ["import", "--force", *words], catch_exceptions=False)
    small = ["length=1st", "data.eval_batch=4"]
    if "cards" in words[0]:
        small += ["model=cifar-resnet8", "data.augment.size=32", "data.augment.resize=32", "batch=4", "shards=2"]
    done = warm(place, "train", recipe, *small, "--run", place / f"run-{recipe}")
    assert done.code == 0, done
