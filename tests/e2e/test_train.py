"""What a training shows and leaves: its lines, its run folder, its result; and the ways to start one."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
import termios
from pathlib import Path

import pytest
import yaml
from figures import STEPS, STEPS_PER_EPOCH, bits, figures
from program import SHOAL, Finished, Program, run_shoal
from warm import warm

from shoal.base.run import Run
from shoal.recipe.load import load
from shoal.report.predictions import Predictions
from shoal.train import checkpoint

NUMBER = r"\d+\.\d+"
SHORT = ("length=6st", "save_every=6st", "eval_every=6st")


def events(folder: Path, kind: str) -> list[dict]:
    return [event for event in Run(folder).read_metrics() if event["event"] == kind]


# --- what it shows


def told(err: str) -> str:
    """What workers said; the launcher's note where they take long to start is this machine's."""
    return "".join(line for line in err.splitlines(keepends=True) if not line.startswith("note: not all workers have"))


def test_lines_that_scripts_grep_in_their_order(two: Finished) -> None:
    run, lines = Run(two.folder), told(two.result.err).splitlines()
    assert lines[:4] == [
        "Recipe   small",
        "Model    digits-cnn, 33,338 parameters",
        "Workers  2 (ddp), batch 40 images in 6 shards",
        f"Length   {STEPS} steps = 2 epochs of {STEPS_PER_EPOCH} steps (1,190 images)",
    ]
    reasons = [line for line in lines if line.startswith("Because  ")]
    assert len(reasons) >= 3 and lines[4 : 4 + len(reasons)] == reasons
    rest = lines[4 + len(reasons) :]
    assert re.fullmatch(rf"Epoch\[0\] Batch \[3\] Speed: {NUMBER} samples/sec accuracy={NUMBER}", rest[0])
    kinds = {
        "train": rf"Epoch\[{{epoch}}\] Batch \[{{batch}}\] Speed: {NUMBER} samples/sec accuracy={{top1:.6f}}",
        "epoch": rf"Epoch\[{{epoch}}\] Train-accuracy={{top1:.6f}}\nEpoch\[{{epoch}}\] Time cost={NUMBER}",
        "val": r"Epoch\[{epoch}\] Validation-accuracy={top1:.6f}",
        "save": r'Saved checkpoint to "{path}"',
    }
    known = [event for event in run.read_metrics() if event["event"] in kinds]
    expected = "\n".join(kinds[event["event"]].format_map(event) for event in known)
    assert re.fullmatch(expected, "\n".join(rest[:-1])), two.result
    assert re.match(rf"Done: {STEPS} steps, 2,380 images in {NUMBER} s", lines[-1])


def test_the_table_and_nothing_else_is_on_stdout(two: Finished) -> None:
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in two.result.out.splitlines())
    val, run = events(two.folder, "val")[-1], Run(two.folder)
    assert rows["workers"] == "2 (ddp), batch 40, shards 6"
    assert rows["images seen"] == f"2,380 in {STEPS} steps"
    assert rows["top-1"] == (f"{val['top1']:.4f}  ({val['correct1']} correct, n = 359, step {STEPS}, averaged weights)")
    assert rows["checkpoint"] == str(run.checkpoint(STEPS))
    assert rows["curves"] == str(run.curves)
    assert rows["report"] == str(run.report)
    assert "compute" in rows["time went to"] and rows["held up by"]


# --- what it leaves


def test_the_run_folder(two: Finished) -> None:
    run = Run(two.folder)
    assert {path.name for path in two.folder.iterdir()} == {
        ".lock",
        "recipe.yaml",
        "plan.txt",
        "environment.json",
        "metrics.jsonl",
        "tensorboard",
        "report.html",
        "logs",
        "checkpoints",
        "curves.png",
    }
    assert sorted(path.name for path in (two.folder / "logs").iterdir()) == ["worker-0.log", "worker-1.log"]
    assert run.log("worker", 0).read_text() == told(two.result.err), (
        "the console shows what worker 0 says, as it says it"
    )
    assert run.log("worker", 1).read_text() == ""
    assert len(list(run.tensorboard.iterdir())) == 1
    assert run.curves.read_bytes().startswith(b"\x89PNG")
    plan = run.plan.read_text()
    assert "launcher: local" in plan
    assert "localhost worker-1" in plan


def test_what_the_best_validation_said_of_each_image(two: Finished) -> None:
    run = Run(two.folder)
    best = max(events(two.folder, "val"), key=lambda event: event["top1"])
    held = Predictions.read(run.predictions(best["step"]))
    assert (held.correct.sum(), held.correct5.sum(), held.known.sum()) == (
        best["correct1"],
        best["correct5"],
        best["count"],
    )
    assert held.pictures.shape == (len(held.shown), 8, 8, 1)
    page = run.report.read_text()
    assert f"{best['correct5']:,} of {best['count']:,} images" in page and "The worst mistakes" in page


def test_a_report_that_cannot_be_made_does_not_fail_the_training(recipe: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.report.mkdir(parents=True)
    result = warm(tmp_path, "train", recipe, *SHORT, "monitor=3st", "--run", run.folder)
    assert result.code == 0, result
    assert re.search(r"^WARNING: no report: .*report\.html: cannot be written", result.err, re.MULTILINE), result
    looks = events(run.folder, "monitor")
    assert [look["step"] for look in looks] == [3, 6]
    assert all(tensor["gradient_rms"] > 0 for look in looks for tensor in look["tensors"])


def test_environment_json_holds_no_variables(two: Finished) -> None:
    held = json.loads(Run(two.folder).environment.read_text())
    versions = {"python", "shoal", "code", "torch", "timm", "numpy"}
    assert held.keys() == versions | {"system", "cpu", "cores", "host", "device", "threads"}
    assert held["threads"] == 1, "deterministic pins the threads"


def test_the_resolved_recipe_trains_the_same(two: Finished, recipe: Path, tmp_path: Path) -> None:
    resolved = Run(two.folder).recipe
    assert load(str(resolved)).recipe == load(str(recipe)).recipe
    assert yaml.safe_load(resolved.read_text())["ema"] == {"half_life": "0.25ep"}
    result = warm(tmp_path, "train", resolved, "--run", tmp_path / "run", n=2)
    assert result.code == 0, result
    assert bits(tmp_path / "run") == bits(two.folder)


def test_the_newest_and_the_best_checkpoints_are_kept(recipe: Path, tmp_path: Path) -> None:
    """The best is made an early one: after it comes a rate at which nothing can get better."""
    run = Run(tmp_path / "run")
    common = ("schedule=constant", "eval_every=2st", "save_every=2st", "keep_last=3", "ema=null", "--run", run.folder)
    good = warm(tmp_path, "train", recipe, "length=12st", *common)
    assert good.code == 0, good
    bad = warm(
        tmp_path, "train", recipe, "length=24st", "optim.lr=5", *common, "--allow", "optim.lr", "--allow", "length"
    )
    assert bad.code == 0, bad
    best = max(events(run.folder, "val"), key=lambda event: event["top1"])
    assert best["step"] <= 12, "the best must be older than the newest three, or nothing is tested"
    assert run.steps_saved() == [best["step"], 20, 22, 24]
    assert run.read_best() == {"step": best["step"], "top1": best["top1"]}
    assert [checkpoint.fault(run.checkpoint(step)) for step in run.steps_saved()] == [None] * 4
    for path, val in ((run.folder, best), (run.checkpoint(24), events(run.folder, "val")[-1])):
        _same_score(path, val, tmp_path)


def test_eval_gives_the_figures_of_the_training(two: Finished, tmp_path: Path) -> None:
    val = events(two.folder, "val")[-1]
    path = Run(two.folder).checkpoint(STEPS)
    _same_score(path, val, tmp_path)
    raw = warm(tmp_path, "eval", path, "--raw", "--json")
    assert json.loads(raw.out)["loss"] != val["loss"], "without the average it is another model"
    table = run_shoal(tmp_path, "eval", path)
    assert table.code == 0, table
    assert f"({val['correct1']} correct, n = 359)" in table.out


def _same_score(path: Path, val: dict, tmp_path: Path) -> None:
    result = warm(tmp_path, "eval", path, "--json")
    assert result.code == 0, result
    told = json.loads(result.out)
    kept = ("loss", "top1", "top5", "count", "correct1", "correct5", "averaged")
    assert {key: told[key] for key in kept} == {key: val[key] for key in kept}


# --- how it ends


def test_desired_accuracy_ends_it_early_and_for_good(recipe: Path, reference: Path, tmp_path: Path) -> None:
    first = events(reference, "val")[1]
    assert first["step"] < STEPS
    command = ("train", recipe, f"desired_accuracy={first['top1']}", "--run", tmp_path / "run")
    early = warm(tmp_path, *command, n=2)
    assert early.code == 0, early
    assert f"Done: desired accuracy reached after {first['step']} steps" in early.err
    assert Run(tmp_path / "run").steps_saved()[-1] == first["step"]
    _does_nothing_more(tmp_path / "run", command)


def test_a_finished_run_only_tells_its_result(reference: Path, recipe: Path, two: Finished) -> None:
    _does_nothing_more(two.folder, ("train", recipe, "--run", two.folder))


def _does_nothing_more(folder: Path, command: tuple) -> None:
    before, shown, saves = bits(folder), figures(folder), events(folder, "save")
    again = warm(folder.parent, *command)
    assert again.code == 0, again
    assert "Batch [" not in again.err
    assert f"top-1               {events(folder, 'val')[-1]['top1']:.4f}" in again.out
    assert (bits(folder), figures(folder), events(folder, "save")) == (before, shown, saves)


# --- the ways to start it


def test_a_dry_run_starts_nothing_and_writes_nothing(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = run_shoal(tmp_path, "train", recipe, "-n", "3", "--run", folder, "--ports", "5000-5100", "--dry-run")
    assert result.code == 0, result
    assert not folder.exists()
    assert result.out.startswith(f"launcher: local\nrun: {folder}\nprocesses: 3\nports: 5000-5100\n")
    assert result.out.count(f"shoal worker --run {folder} --name small") == 3
    assert result.err == ""


@pytest.mark.slow
def test_under_torchrun_it_is_a_worker_of_that_world(recipe: Path, reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")
    # `--`, for torchrun would take `--run` for a short form of its own `--run-path`
    program = Program(tmp_path, *torchrun, "--", *SHOAL, "train", str(recipe), "--run", str(folder))
    try:
        result = program.result()
        assert program.alive() == []
    finally:
        program.kill()
    assert result.code == 0, result
    assert "launcher: torchrun (not started by Shoal)\nprocesses: 2" in Run(folder).plan.read_text()
    assert events(folder, "start")[0]["num_ranks"] == 2
    assert result.out.count("recipe  ") == 1, "one worker speaks for all"
    assert Run(folder).log("worker", 0).exists()
    assert bits(folder) == bits(reference)
    assert figures(folder) == figures(reference)


def test_under_a_world_workers_cannot_be_asked_for(recipe: Path, tmp_path: Path) -> None:
    world = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    result = run_shoal(tmp_path, "train", recipe, "-n", "2", "--run", tmp_path / "run", env=world)
    assert result.code == 2, result
    assert "this is already a worker of torchrun (2 in all); leave out -n, -H and --launcher" in result.err
    assert not (tmp_path / "run").exists()


def test_batch_per_worker_and_shards_auto_say_what_they_mean(recipe: Path, reference: Path, tmp_path: Path) -> None:
    """Two workers of 20 images and 3 shards each are the batch of 40 in 6 shards: the same model."""
    own = tmp_path / "own.yaml"
    own.write_text(re.sub(r"(?m)^batch: 40\nshards: 6", "batch_per_worker: 20\nshards: auto", recipe.read_text()))
    result = warm(tmp_path, "train", own, *SHORT, "--run", tmp_path / "auto", n=2)
    assert result.code == 0, result
    assert "Because  batch: 40 (batch_per_worker 20 x 2 workers)" in result.err
    assert "Because  shards: 2 (auto; another number of workers would train another model)" in result.err
    stated = warm(tmp_path, "train", recipe, *SHORT, "shards=2", "--run", tmp_path / "stated")
    assert stated.code == 0, stated
    assert bits(tmp_path / "auto") == bits(tmp_path / "stated")


@pytest.mark.slow
def test_a_person_at_a_terminal_sees_a_bar_and_a_table(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, seen = _on_a_terminal(*SHOAL, "train", str(recipe), "-n", "2", "--run", str(folder), "length=30st")
    assert code == 0, seen
    bar = re.search(r"epoch 1/1 [━─╸ ]+.*images/s.*waiting.*loss.*accuracy", seen)
    assert bar, seen
    assert "left" in seen
    assert "Batch [" not in seen, "the lines for scripts are in the log alone"
    assert "Epoch[0] Batch [3] Speed" in Run(folder).log("worker", 0).read_text()
    assert seen.index("recipe ") > seen.index("Done: 30 steps"), "the table comes last"
    assert re.search(r"top-1 +0\.\d{4}", seen)


def _on_a_terminal(*argv: str) -> tuple[int, str]:
    """Runs a command on a terminal of its own, 140 columns wide; its exit code and what was to be seen, uncoloured."""
    pid, terminal = pty.fork()
    if pid == 0:
        termios.tcsetwinsize(0, (40, 140))
        os.environ |= {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
        os.execv(argv[0], argv)
    seen = b""
    while data := _read(terminal):
        seen += data
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode(errors="replace"))


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # EIO: nobody holds the other end any more
        return b""
