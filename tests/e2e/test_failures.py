"""What goes wrong is told in a line that helps, ends with the right code, and damages nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from figures import STEPS, bits, figures, wait_until, weights
from program import Finished, Program, Result, run_shoal, shoal
from warm import warm

from shoal.base.run import Run
from shoal.train import checkpoint

# --- faults that are found before anything starts


TORCHLESS = "import sys\nfrom shoal.cli import main\ntry: main()\nfinally: print('torch' in sys.modules, sys.argv[-1])"


def refused(folder: Path, *args: str | Path) -> str:
    """What `shoal train ARGS` says when it refuses: with exit code 2, in a moment, writing nothing."""
    program = Program(folder / "said", sys.executable, "-c", TORCHLESS, "train", *map(str, args))
    try:
        result = program.result()
    finally:
        program.kill()
    assert result.code == 2, result
    assert result.out.startswith("False"), "torch was imported on the way to the error"
    assert "Traceback" not in result.err, result
    return result.err


def test_all_faults_of_a_recipe_at_once_with_their_places(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "data: {name: digitz}\n"
        "model: digits-cnn\n"
        "optim:\n"
        "  name: sgd\n"
        "  lr: fast\n"
        "  momentun: 0.9\n"
        "batch: 64\n"
        "length: 10\n"
    )
    told = refused(tmp_path, recipe, "shards=0", "norm=batch", "--run", tmp_path / "run").splitlines()
    for place, *words in [
        (f"{recipe}:1: data", "no source called 'digitz'", "did you mean 'digits'?"),
        (f"{recipe}:5: optim.lr", "fast", "number"),
        (f"{recipe}:6: optim.momentun", "did you mean 'momentum'?"),
        (f"{recipe}:8: length", "10 has no unit", "90ep"),
        ("command line: shards", "0"),
        ("command line: norm", "batch", "sync"),
    ]:
        (line,) = (line for line in told if line.startswith(place))
        assert all(word in line for word in words), line
    assert len(told) == 6, "one line for each fault, and no other"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("gone.yaml", None, "no such file"),
        ("folder", "folder", "no recipe.yaml in it"),
        ("other.yaml", "folder", "no recipe.yaml in it"),
        ("binary.yaml", b"\xff\xfe\x00", "cannot be read (not UTF-8 text)"),
        ("broken.yaml", b"data: {name: digits\nbatch: 1\n", "broken.yaml:2: not valid YAML"),
        ("list.yaml", b"- a\n", "list.yaml:1: a recipe is a mapping"),
        ("empty.yaml", b"", "data"),
    ],
)
def test_files_that_are_no_recipe(name: str, content: bytes | str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path.mkdir()
    told = refused(tmp_path, f"{tmp_path}/{name}", "--run", tmp_path / "run")
    assert words in told
    assert name in told


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_a_recipe_that_may_not_be_read(recipe: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(recipe, tmp_path))
    path.chmod(0)
    assert "cannot be read (Permission denied)" in refused(tmp_path, path)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["digitz"], "no recipe called 'digitz'; did you mean 'digits'?"),
        (["digits", "-n", "5"], "5 workers for 4 shards: a worker takes whole shards; use at most 4 workers"),
        (["digits", "strategy=single", "-n", "2"], "strategy single has one worker, not 2"),
        (["digits", "strategy=dp", "-n", "2"], "not 2 workers; use strategy.devices=2 instead, or strategy=ddp"),
        (["digits", "strategy=dp:devices=5"], "5 devices for 4 shards: a device takes whole shards"),
        (["digits", "--launcher", "lokal"], "did you mean 'local'?"),
        (["digits", "--ports", "9-1"], "--ports 9-1: expected a range as in 5000-5100"),
        (["digits", "--resume", "nowhere"], "--resume nowhere: no such folder"),
        (["digits", "lr"], "an override is key=value"),
    ],
)
def test_command_lines_that_are_refused(args: list[str], words: str, tmp_path: Path) -> None:
    assert words in refused(tmp_path, *args, "--run", tmp_path / "run")


def test_a_run_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = refused(tmp_path, "digits", "--run", tmp_path / "file")
    assert f"--run {tmp_path}/file: cannot be made" in told


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refused(tmp_path, "digits", "-n", "2", "--run", tmp_path / "run", "--ports", f"{port}-{port}")
    assert f"no free port in {port}-{port} on 127.0.0.1; name another range with --ports A-B" in told


def test_never_into_a_used_folder(two: Finished, recipe: Path, tmp_path: Path) -> None:
    before = _files(two.folder)
    told = refused(tmp_path, recipe, "--run", two.folder, "--resume", "never")
    assert f"--resume never: {two.folder} holds checkpoints that would be lost" in told
    assert _files(two.folder) == before


def test_a_changed_recipe_is_listed_and_wants_a_word(two: Finished, recipe: Path, tmp_path: Path) -> None:
    changes = ("optim.lr=0.05", "seed=8", "save_every=7st", "data.threads=0")
    told = refused(tmp_path, recipe, *changes, "--run", two.folder).splitlines()
    assert "  optim.lr: 0.1 -> 0.05" in told
    assert "  seed: 7 -> 8" in told
    assert len(told) == 4, "keys that do not touch the trajectory are not listed"
    assert "--allow optim.lr --allow seed" in told[-1]
    again = refused(tmp_path, recipe, *changes, "--run", two.folder, "--allow", "seed")
    assert "optim.lr" in again
    assert "seed" not in again


def _files(folder: Path) -> dict[Path, bytes]:
    held = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: path.read_bytes() for path in held}


# --- faults of workers


@pytest.mark.slow
def test_a_killed_worker_is_told_last(recipe: Path, reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with shoal(tmp_path, "train", recipe, "-n", "2", "--run", folder) as program:
        wait_until(folder, 9)
        in_use = refused(tmp_path, recipe, "--run", folder)
        assert re.search(
            rf"--run {re.escape(str(folder))}: in use by another run \(pid {program.process.pid} on", in_use
        )
        os.kill(program.worker(1), signal.SIGKILL)
        result = program.result()
        assert program.alive() == []
    assert result.code == 1, result
    told = result.err.splitlines()
    culprit = told.index("worker 1 failed first: killed by SIGKILL (exit -9)")
    assert told[culprit - 1].startswith("also ended because of it: worker 0 (")
    assert told[-1] == f"log: {Run(folder).log('worker', 1)}"
    resumed = warm(tmp_path, "train", recipe, "--run", folder)
    assert resumed.code == 0, resumed
    assert bits(folder) == bits(reference)
    assert figures(folder) == figures(reference)


@pytest.mark.slow
def test_a_worker_that_dies_at_start(recipe: Path, tmp_path: Path) -> None:
    """The others wait for it at the meeting point, and are not left there."""
    with shoal(tmp_path, "train", recipe, "-n", "2", "--run", tmp_path / "run") as program:
        os.kill(program.worker(1), signal.SIGKILL)
        result = program.result(30)
        assert program.alive() == []
    assert result.code == 1, result
    told = result.err.splitlines()
    assert "worker 1 failed first: killed by SIGKILL (exit -9)" in told
    assert told[-1].startswith("log: ")


@pytest.mark.slow
def test_a_fault_that_only_workers_can_find(recipe: Path, tmp_path: Path) -> None:
    optim = "optim={name: timm, opt: lambb, lr: 0.1}"
    result = run_shoal(tmp_path, "train", recipe, optim, "-n", "2", "--run", tmp_path / "run")
    assert result.code == 2, result
    assert "Traceback" not in result.err
    told = result.err.splitlines()
    assert re.fullmatch(r"worker [01] failed first: exit 2", told[-3])
    assert told[-2].startswith("optim.opt: no timm optimizer called 'lambb'; did you mean 'lamb'?")
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.slow
def test_a_gradient_that_is_not_finite(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    wild = ("optim.lr=1e20", "schedule=constant", "save_every=1st")
    result = run_shoal(tmp_path, "train", recipe, *wild, "-n", "2", "--run", folder)
    assert result.code == 1, result
    assert "Traceback" not in result.err
    (line,) = (line for line in result.err.splitlines() if line.startswith("step "))
    found = re.match(r"step (\d+), rank [01]: the gradient is not finite; first non-finite tensor: (.+?)\. ", line)
    assert found, line
    assert re.match(r"(output|gradient|parameter|buffer) (of )?(features|head)", found[2]), line
    assert "Lower optim.lr" in line
    assert result.err.rstrip().splitlines()[-1].startswith("log: ")
    assert Run(folder).steps_saved()[-1] <= int(found[1])
    assert all(bool(tensor.isfinite().all()) for tensor in weights(folder).values())


def test_an_update_that_overflows_is_not_saved(recipe: Path, tmp_path: Path) -> None:
    """Its gradient was finite; nobody could go on from these weights."""
    folder = tmp_path / "run"
    wild = ("optim.lr=3e38", "optim.weight_decay=1", "schedule=constant", "save_every=1st", "ema=null")
    result = warm(tmp_path, "train", recipe, *wild, "--run", folder, n=2)
    assert result.code == 1, result
    assert re.search(r"^ERROR: step 1: \S+ is not finite after the update, so nothing was saved", result.err, re.M), (
        result
    )
    assert Run(folder).steps_saved() == []


def test_labels_out_of_range(recipe: Path, tmp_path: Path) -> None:
    result = warm(tmp_path, "train", recipe, "model.classes=5", "--run", tmp_path / "run")
    assert result.code == 2, result
    assert re.search(r"digits, train image \d+ has label 9, but the model has 5 outputs \(labels 0 to 4\)", result.err)


# --- checkpoints


@pytest.fixture
def copy(reference: Path, tmp_path: Path) -> Path:
    """A finished run that a test may damage."""
    return Path(shutil.copytree(reference, tmp_path / "run"))


def _damage(path: Path, how: str) -> None:
    held = bytearray(path.read_bytes())
    if how == "truncated":
        del held[-1:]
    elif how == "flipped":
        held[len(held) // 2] ^= 1
    path.write_bytes(held)
    if how == "gone":
        path.unlink()


@pytest.mark.parametrize(
    ("file", "how", "words"),
    [
        ("model.safetensors", "truncated", r"model\.safetensors has \d+ of \d+ bytes"),
        ("ema.safetensors", "flipped", r"the checksum of ema\.safetensors is wrong"),
        ("state.pt", "gone", r"state\.pt: No such file"),
        ("manifest.json", "truncated", r"manifest\.json cannot be read"),
    ],
)
def test_a_damaged_newest_checkpoint_is_passed_over(
    file: str, how: str, words: str, copy: Path, recipe: Path, reference: Path, tmp_path: Path
) -> None:
    *_, before, newest = Run(copy).steps_saved()
    _damage(Run(copy).checkpoint(newest) / file, how)
    result = warm(tmp_path, "train", recipe, "--run", copy)
    assert result.code == 0, result
    folder = re.escape(str(Run(copy).checkpoint(newest)))
    assert re.search(rf"^WARNING: {folder}: damaged \({words}.*\); falling back to an earlier", result.err, re.M)
    assert f"Resumed  from step {before}" in result.err
    assert bits(copy) == bits(reference)
    assert figures(copy) == figures(reference)


def test_nothing_but_damaged_checkpoints(copy: Path, recipe: Path, tmp_path: Path) -> None:
    for step in Run(copy).steps_saved():
        _damage(Run(copy).checkpoint(step) / "model.safetensors", "flipped")
    before = _files(copy)
    result = warm(tmp_path, "train", recipe, "--run", copy)
    assert result.code == 1, result
    assert "every checkpoint is damaged; start anew in another --run folder" in result.err
    assert "Traceback" not in result.err
    assert _files(copy / "checkpoints") == {path: data for path, data in before.items() if "checkpoints" in path.parts}


def test_a_checkpoint_of_another_model(reference: Path, recipe: Path, tmp_path: Path) -> None:
    newest = Run(reference).checkpoint(STEPS)
    other = ("train", recipe, "model=cifar-resnet8", "--run", tmp_path / "run", "--resume", newest)
    told = refused(tmp_path, *other[1:])
    assert "model.name: digits-cnn -> cifar-resnet8" in told
    result = warm(tmp_path, *other, "--allow", "model")
    assert result.code == 1, result
    assert f"{newest}: these weights are of another model: " in result.err
    assert "features.3.branch.0.weight (weights none, model [16, 16, 3, 3])" in result.err
    assert "Traceback" not in result.err


def test_what_no_checkpoint_is(recipe: Path, tmp_path: Path) -> None:
    result = warm(tmp_path, "train", recipe, "--run", tmp_path / "run", "--resume", tmp_path)
    assert result.code == 2, result
    assert f"{tmp_path}: neither a checkpoint nor a run folder" in result.err


def test_an_allowed_change_and_free_keys(reference: Path, recipe: Path, tmp_path: Path) -> None:
    """From a checkpoint of another run: a new folder gets the changed recipe, the old one stays as it is."""
    start = Run(reference).checkpoint(Run(reference).steps_saved()[0])
    before = _files(reference)
    begun = ("train", recipe, "--resume", start)
    free = warm(tmp_path, *begun, "--run", tmp_path / "free", "save_every=5st", "data.threads=0", "eval_every=1ep")
    assert free.code == 0, free
    assert bits(tmp_path / "free")["model"] == bits(reference)["model"]
    changed = warm(tmp_path, *begun, "--run", tmp_path / "changed", "optim.lr=0.05", "--allow", "optim.lr")
    assert changed.code == 0, changed
    assert bits(tmp_path / "changed")["model"] != bits(reference)["model"]
    assert _files(reference) == before


def test_one_cannot_go_back_inside_a_run(copy: Path, recipe: Path, tmp_path: Path) -> None:
    """The later checkpoints would be taken for the continuation of the new training."""
    first, *_, newest = Run(copy).steps_saved()
    before = _files(copy / "checkpoints")
    result = warm(tmp_path, "train", recipe, "--run", copy, "--resume", Run(copy).checkpoint(first))
    assert result.code == 2, result
    assert f"{copy} holds later checkpoints (up to step {newest})" in result.err
    assert _files(copy / "checkpoints") == before


def test_what_a_killed_save_left_is_swept_away(copy: Path, recipe: Path, tmp_path: Path) -> None:
    left = copy / "checkpoints" / ".step-00000044.999.aside"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    result = warm(tmp_path, "train", recipe, "--run", copy)
    assert result.code == 0, result
    assert not left.exists()


def test_the_best_is_known_after_a_kill_between_saving_and_marking_it(copy: Path, recipe: Path, tmp_path: Path) -> None:
    best = Run(copy).read_best()
    Run(copy).best.unlink()
    result = warm(tmp_path, "train", recipe, "--run", copy)
    assert result.code == 0, result
    assert Run(copy).read_best() == best


# --- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that holds two checkpoints of some 0.4 MiB, but not three."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1100k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk(small_disk: Path, recipe: Path, reference: Path, tmp_path: Path) -> None:
    folder = small_disk / "run"
    result = warm(tmp_path, "train", recipe, "--run", folder, "keep_last=9")
    _told_and_kept(result, folder)
    elsewhere = Path(shutil.copytree(folder, tmp_path / "run"))
    _goes_on(elsewhere, recipe, reference, tmp_path)


def test_a_file_that_may_not_grow(recipe: Path, reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    early = warm(tmp_path, "train", recipe, "--run", folder, "length=8st", "schedule=constant", "save_every=4st")
    assert early.code == 0, early
    wider = ("length=2ep", "schedule=constant", "--allow", "length")
    result = warm(tmp_path, "train", recipe, "--run", folder, *wider, file_limit=100_000)
    _told_and_kept(result, folder)
    assert Run(folder).steps_saved()[-1] == 8


def _told_and_kept(result: Result, folder: Path) -> None:
    """One line says so, and it is true: nothing half-written, and the earlier checkpoints are sound."""
    assert result.code == 1, result
    assert "Traceback" not in result.err, result
    (line,) = (line for line in result.err.splitlines() if line.startswith("ERROR"))
    assert re.search(r"step-\d{8}: the checkpoint could not be written \((No space|File too large|.*[Ee]rror)", line), (
        line
    )
    assert line.endswith("nothing half-written was left, earlier checkpoints are untouched")
    run = Run(folder)
    assert run.steps_saved()
    assert [checkpoint.fault(run.checkpoint(step)) for step in run.steps_saved()] == [None] * len(run.steps_saved())
    names = {path.name for path in run.checkpoints.iterdir()}
    assert names <= {"best.json", *(run.checkpoint(step).name for step in run.steps_saved())}


def _goes_on(folder: Path, recipe: Path, reference: Path, tmp_path: Path) -> None:
    result = warm(tmp_path, "train", recipe, "--run", folder)
    assert result.code == 0, result
    assert bits(folder)["model"] == bits(reference)["model"]
    assert figures(folder) == figures(reference)
