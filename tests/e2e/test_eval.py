"""Promise 6: a checkpoint scores what its training said, whoever validates it and however many of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import Finished, run_shoal
from warm import warm

from gangs import GangPool
from shoal.base.run import Run
from shoal.step.gang import Gang

KEPT = ("loss", "top1", "top5", "count", "correct1", "correct5", "averaged")
SHORT = ("length=4st", "eval_every=4st", "save_every=4st", "strategy={name: ddp, threads: 1}", "data.eval_batch=50")


def scored(gang: Gang, path: Path) -> dict:
    from shoal.train.restored import Restored

    restored = Restored(path)
    score = restored.evaluate(gang)
    return {"averaged": restored.averaged, **{key: getattr(score, key) for key in KEPT[:-1]}}


@pytest.mark.parametrize("ema", ["{half_life: 2st}", "null"])
@pytest.mark.parametrize("norm", ["shard", "sync", "frozen"])
def test_any_number_of_workers_scores_what_the_training_said(
    gang_pool: GangPool, norm: str, ema: str, recipe: Path, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    result = warm(tmp_path, "train", recipe, *SHORT, f"norm={norm}", f"ema={ema}", "--run", run.folder, n=2)
    assert result.code == 0, result
    val = run.metrics("val")[-1]
    told = {key: val[key] for key in KEPT}
    for n in (1, 2, 3):
        assert gang_pool.run(scored, n, run.checkpoint(4)) == [told] * n


def test_a_worker_of_a_world_that_somebody_else_made(two: Finished, tmp_path: Path) -> None:
    alone = json.loads(warm(tmp_path, "eval", two.folder, "--json").out)
    assert json.loads(warm(tmp_path, "eval", two.folder, "--json", n=3).out) == alone
    assert sum(row["correct1"] for row in alone["classes"]) == alone["correct1"]
    flipped = json.loads(warm(tmp_path, "eval", two.folder, "--json", "--tta", "flip", n=2).out)
    assert flipped["correct1"] < alone["correct1"], "a mirrored digit is another"


def test_workers_that_eval_starts(two: Finished, tmp_path: Path) -> None:
    shared = run_shoal(tmp_path, "eval", two.folder, "-n", "2", "--json")
    assert shared.code == 0, shared
    assert shared.out == warm(tmp_path, "eval", two.folder, "--json").out
    failed = run_shoal(tmp_path, "eval", two.folder, "-n", "2", "data=cifar10", "data.path=gone")
    assert failed.code == 1, failed
    assert failed.err.splitlines()[-1].startswith("gone: "), failed
    assert "log: " not in failed.err
