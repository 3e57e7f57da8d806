"""Promises 8 and 9: any number of workers, killed and resumed or not, trains the same model, bit for bit."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from figures import STEPS_PER_EPOCH, bits, figures, reached, wait_until, weights
from program import Finished, Program, shoal
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from warm import Warm, warm

from shoal.base.run import Run
from shoal.report.sinks.tensorboard import TAGS


def test_two_workers_of_the_agent_train_what_one_trains(reference: Path, two: Finished) -> None:
    assert two.result.code == 0, two.result
    assert bits(two.folder) == bits(reference)
    assert figures(two.folder) == figures(reference)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_any_number_of_workers_trains_the_same_bits(n: int, recipe: Path, reference: Path, tmp_path: Path) -> None:
    result = warm(tmp_path, "train", recipe, "--run", tmp_path / "run", n=n)
    assert result.code == 0, result
    assert bits(tmp_path / "run") == bits(reference)
    assert figures(tmp_path / "run") == figures(reference)


@pytest.mark.parametrize("sort", ["devices=3,kvstore=device", "devices=2,kvstore=local"])
def test_any_number_of_devices_trains_the_same_bits(sort: str, recipe: Path, reference: Path, tmp_path: Path) -> None:
    strategy = f"strategy=dp:deterministic=true,{sort}"
    result = warm(tmp_path, "train", recipe, strategy, "--run", tmp_path / "run")
    assert result.code == 0, result
    assert bits(tmp_path / "run") == bits(reference)
    assert figures(tmp_path / "run") == figures(reference)


def test_two_pipelines_of_two_stages_train_the_same_bits(recipe: Path, reference: Path, tmp_path: Path) -> None:
    strategy = "strategy=pipeline:deterministic=true,stages=2"
    result = warm(tmp_path, "train", recipe, strategy, "--run", tmp_path / "run", n=4)
    assert result.code == 0, result
    assert bits(tmp_path / "run") == bits(reference)
    assert figures(tmp_path / "run") == figures(reference)


@pytest.mark.parametrize("workers", [(1, 1, 1), (2, 2, 2), (3, 3, 3), (1, 3, 2), (3, 1, 2), (2, 1, 3)])
def test_killed_twice_in_an_epoch_and_resumed(
    workers: tuple[int, int, int], recipe: Path, reference: Path, tmp_path: Path
) -> None:
    """SIGKILL hits all workers at once, anywhere in a step, a validation or a save."""
    folder, chance = tmp_path / "run", random.Random(repr(workers))
    for low, high, n in ((5, 13, workers[0]), (17, 24, workers[1])):
        with Warm(tmp_path, "train", recipe, "--run", folder, n=n) as killed:
            wait_until(folder, chance.randint(low, high))
            time.sleep(chance.uniform(0, 0.05))
        assert reached(folder) < STEPS_PER_EPOCH, "the kill came after the epoch: nothing was tested"
        assert all(member.exitcode == -signal.SIGKILL for member in killed.members)
    result = warm(tmp_path, "train", recipe, "--run", folder, n=workers[2])
    assert result.code == 0, result
    assert "Resumed  from step" in result.err
    assert bits(folder) == bits(reference)
    assert figures(folder) == figures(reference)
    _one_writer(folder)
    leftovers = [path.name for path in Run(folder).checkpoints.iterdir() if path.name.startswith(".")]
    assert leftovers == [], "a save that was killed leaves nothing once the run goes on"


def _one_writer(folder: Path) -> None:
    """TensorBoard shows each reported value once, in order, as if nothing had been killed."""
    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    events = Run(folder).read_metrics()
    for kind, tags in TAGS.items():
        told = [event for event in events if event["event"] == kind]
        for tag, field in tags.items():
            shown = accumulator.Scalars(tag)
            assert [item.step for item in shown] == [event["step"] for event in told], tag
            assert all(before.step < after.step for before, after in itertools.pairwise(shown)), tag
            assert [item.value for item in shown] == pytest.approx([event[field] for event in told], rel=1e-6), tag


@pytest.mark.slow
def test_the_whole_group_killed_and_started_again(recipe: Path, reference: Path, tmp_path: Path) -> None:
    """The launcher and all its workers at one blow, then the same command again."""
    folder = tmp_path / "run"
    command = ("train", recipe, "-n", "2", "--run", folder)
    with shoal(tmp_path, *command) as program:
        wait_until(folder, 10)
        _kill_all(program)
        assert program.result().code == -signal.SIGKILL
    assert bits(folder)["kept"][-1] < STEPS_PER_EPOCH
    with shoal(tmp_path, *command) as program:
        result = program.result()
    assert result.code == 0, result
    assert bits(folder) == bits(reference)
    assert figures(folder) == figures(reference)


def _kill_all(program: Program) -> None:
    pids = program.alive()
    assert len(pids) >= 3
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


FLOAT64 = ("precision=fp64", "strategy={name: ddp, threads: 1}", "length=12st", "save_every=12st", "eval_every=12st")


@pytest.mark.parametrize("norm", ["shard", "sync"])
def test_without_determinism_float64_agrees(norm: str, recipe: Path, tmp_path: Path) -> None:
    trained = []
    for n in (1, 2, 3):
        folder = tmp_path / f"run-{n}"
        result = warm(tmp_path, "train", recipe, *FLOAT64, f"norm={norm}", "--run", folder, n=n)
        assert result.code == 0, result
        trained.append(weights(folder))
    alone = trained[0]
    assert {tensor.dtype for tensor in alone.values()} <= {torch.float64, torch.int64}
    for others in trained[1:]:
        for name, tensor in alone.items():
            torch.testing.assert_close(others[name], tensor, rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def test_a_model_that_starts_from_images_and_orthogonal_steps_train_the_same_bits(tmp_path: Path) -> None:
    recipe = tmp_path / "white.yaml"
    recipe.write_text(
        "data: {name: synthetic, images: 96, size: 16, augment: {pad: 2, pad_mode: reflect, mirror: alternate}}\n"
        "model: cifar-whitenet8\n"
        "optim: {name: muon, lr: 0.05, momentum: 0.6, fixed_norm: true, weight_decay: 5e-4, decay_norms: false}\n"
        "schedule: linear\nbatch: 16\nshards: 4\nlength: 2ep\n"
        "ema: {half_life: 0.5ep}\nstrategy: {name: ddp, deterministic: true}\nsave_every: 1st\n"
    )
    alone = warm(tmp_path, "train", recipe, "--run", tmp_path / "one")
    assert alone.code == 0, alone
    with Warm(tmp_path, "train", recipe, "--run", tmp_path / "three", n=3):
        wait_until(tmp_path / "three", 4)
    resumed = warm(tmp_path, "train", recipe, "--run", tmp_path / "three", n=2)
    assert resumed.code == 0, resumed
    assert bits(tmp_path / "three") == bits(tmp_path / "one")
