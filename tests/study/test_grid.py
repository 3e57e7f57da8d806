import json
import os
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from shoal.base.errors import ShoalError, UsageError
from shoal.recipe.find import find
from shoal.recipe.load import load
from shoal.study.grid import Cell, Grid
from shoal.study.study import Study


def plan(*strategies: str, workers=(1, 2), overrides=(), **options) -> Grid:
    return Grid.plan("digits", overrides, strategies or ("ddp",), workers, **options)


def test_every_strategy_with_every_number_of_workers():
    grid = plan("ddp", "ps:mode=async", "dp")
    assert [(cell.strategy, cell.workers, cell.servers, cell.processes) for cell in grid.cells] == [
        ("ddp", 1, 0, 1),
        ("ddp", 2, 0, 2),
        ("ps:mode=async", 1, 1, 1),
        ("ps:mode=async", 2, 1, 2),
        ("dp", 1, 0, 1),
        ("dp", 2, 0, 1),
    ]
    assert len({cell.name for cell in grid.cells}) == 6


def test_the_order_goes_forth_and_back():
    grid = plan(repeats=3)
    assert [(repeat, cell.workers) for repeat, cell in grid.order()] == [(0, 1), (0, 2), (1, 2), (1, 1), (2, 1), (2, 2)]


def test_a_training_is_a_command_that_anyone_can_run(tmp_path):
    grid = plan("dp", overrides=("strategy.threads=1",))
    words = grid.command(grid.cells[1], 2, tmp_path)
    assert words == [
        "train", "digits", "strategy=dp", "strategy.threads=1", "strategy.devices=2", "seed=2", "-n", "1",
        "--run", str(tmp_path),
    ]  # fmt: skip


def recipe_with(strategy: str, folder) -> str:
    path = folder / "mine.yaml"
    path.write_text(find("digits").read_text() + f"strategy: {strategy}\n")
    return str(path)


def test_a_row_is_called_after_what_the_recipe_file_makes_of_it(tmp_path):
    recipe = recipe_with("{name: ps, mode: async, damping: false}", tmp_path)
    grid = Grid.plan(recipe, (), ("ps", "ps:mode=sync", "ddp"), (2,))
    names = ["ps:mode=async,damping=false", "ps:mode=sync,damping=false", "ddp"]
    assert [cell.strategy for cell in grid.cells] == names
    assert [cell.same_model for cell in grid.cells] == [False, True, True]
    for cell in grid.cells:
        _, file, *words = grid.command(cell, 0, tmp_path / "run")
        made: Any = load(file, words[: words.index("-n")]).recipe.strategy
        assert made == load(recipe, (f"strategy={cell.strategy}",)).recipe.strategy


def test_rows_that_the_recipe_file_makes_the_same_are_refused(tmp_path):
    recipe = recipe_with("{name: ps, mode: async}", tmp_path)
    with pytest.raises(UsageError, match="--strategies ps and ps:mode=async are both ps:mode=async by the recipe's"):
        Grid.plan(recipe, (), ("ps", "ps:mode=async"), (1, 2))


def test_what_the_recipe_file_says_of_any_strategy_is_said_of_all(tmp_path):
    recipe = recipe_with("{name: ps, threads: 1, deterministic: true}", tmp_path)
    grid = Grid.plan(recipe, (), ("ps", "ddp"), (2,))
    assert grid.overrides == ("strategy.deterministic=true", "strategy.threads=1")
    grid = Grid.plan(recipe, ("strategy.threads=2",), ("ps:deterministic=false", "ddp"), (2,))
    assert grid.overrides == ("strategy.threads=2",)
    assert [cell.strategy for cell in grid.cells] == ["ps:deterministic=false", "ddp"]


def test_what_cannot_be_is_left_out_with_its_reason():
    grid = plan("single", "ddp")
    assert [(cell.strategy, cell.workers) for cell in grid.cells] == [("single", 1), ("ddp", 1), ("ddp", 2)]
    assert grid.left_out[0].startswith("single, 2 workers: strategy single has one worker")


def test_the_smallest_number_of_workers_may_be_one_that_cannot_be():
    grid = plan("ddp", "pipeline:stages=2", workers=(1, 2, 4))
    assert [cell.workers for cell in grid.cells] == [1, 2, 4, 2, 4]
    (left_out,) = grid.left_out
    assert left_out.startswith("pipeline:stages=2, 1 worker: ")


@pytest.mark.parametrize(
    ("strategies", "options", "said"),
    [
        (("ps",), {"servers": 0}, "needs at least one parameter server"),
        (("ddpp",), {}, "ddpp"),
        (("ddp",), {"servers": 2}, "--servers 2: none of --strategies ddp has servers; add ps"),
        (("ddp",), {"workers": (8,)}, "8 workers for 4 shards"),
        (("ddp",), {"weak": True}, "give it in steps"),
        (("ddp",), {"overrides": ("optim.lr=fast",)}, "optim.lr"),
        (("ddp",), {"overrides": ("strategy=ps:mode=async",)}, "say it as --strategies ps:mode=async"),
        (("ddp",), {"overrides": ("strategy.name=ps",)}, "say it as --strategies ps"),
        (("ps:mode=async",), {"overrides": ("strategy.mode=sync",)}, "--strategies ps:mode=async says it, too"),
        (("ddp", "pipeline:stages=2"), {"workers": (1,)}, "pipeline"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(strategies, options, said):
    with pytest.raises(UsageError, match=said):
        plan(*strategies, **options)


def test_weak_scaling_keeps_each_workers_batch():
    grid = plan(weak=True, overrides=("length=50st",))
    assert grid.overrides == ("length=50st", "batch=null", "batch_per_worker=64", "shards=auto")


@pytest.mark.parametrize(
    ("strategy", "same"),
    [
        ("ddp", True),
        ("ps", True),
        ("dp", True),
        ("ddp:compress=powersgd", False),
        ("ps:compress=2bit", False),
        ("ps:mode=async", False),
        ("local_sgd:every=4", False),
    ],
)
def test_a_cell_says_whether_it_trains_the_model_of_any_other(strategy, same):
    assert [cell.same_model for cell in Grid.plan("digits", (), [strategy], [2]).cells] == [same]
    (own,) = Grid.plan("digits", ("shards=auto",), [strategy], [2]).cells
    (weak,) = Grid.plan("digits", ("length=50st",), [strategy], [2], weak=True).cells
    assert not own.same_model
    assert not weak.same_model


def test_a_plan_of_an_older_shoal_learns_it():
    new = Grid.plan("digits", (), ["ps:mode=async"], [2])
    old = replace(new, cells=(replace(new.cells[0], same_model=True),))
    assert [cell.same_model for cell in old.joined(new).cells] == [False]


def test_a_study_goes_on_with_more(tmp_path):
    study = Study(tmp_path / "study")
    study.begin(plan(repeats=1))
    whole = study.begin(plan("ddp", "dp", repeats=3))
    assert whole == study.grid() and whole.repeats == 3
    assert [cell.strategy for cell in whole.cells] == ["ddp", "ddp", "dp", "dp"]


def test_a_study_of_other_work_is_not_mixed_in(tmp_path):
    study = Study(tmp_path / "study")
    study.begin(plan())
    with pytest.raises(UsageError, match="study of other work"):
        study.begin(plan(overrides=("optim.lr=0.1",)))


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match="neither empty nor a study"):
        Study(tmp_path).claim()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_recipe_that_was_edited_is_other_work(tmp_path):
    study, recipe = Study(tmp_path / "study"), tmp_path / "mine.yaml"
    recipe.write_text(find("digits").read_text())
    study.begin(Grid.plan(str(recipe), (), ["ddp"], [1]))
    recipe.write_text(recipe.read_text() + "\nnorm: sync\n")
    with pytest.raises(UsageError, match=r"mine\.yaml has changed since it was begun \(norm: shard -> sync\)"):
        study.begin(Grid.plan(str(recipe), (), ["ddp"], [2]))


def test_a_plan_of_an_older_shoal_is_taken_as_it_is(tmp_path):
    study = Study(tmp_path / "study")
    study.begin(replace(plan(), resolved={}))
    held = json.loads(study.plan.read_text())
    del held["resolved"]
    study.plan.write_text(json.dumps(held))
    assert study.begin(plan()).resolved == plan().resolved != {}


def test_a_key_that_recipes_did_not_have_then_is_no_change(tmp_path):
    study = Study(tmp_path / "study")
    now = plan()
    study.begin(replace(now, resolved={key: value for key, value in now.resolved.items() if key != "norm"}))
    assert study.begin(now).same_work(now)


def test_a_damaged_plan_is_named(tmp_path):
    Study(tmp_path).plan.write_text(json.dumps({"cells": 3}))
    with pytest.raises(ShoalError, match=r"plan\.json: damaged"):
        Study(tmp_path).grid()
    with pytest.raises(ShoalError, match="no study"):
        Study(tmp_path / "none").grid()


def test_names_of_cells_are_names_of_folders():
    assert Cell("ps:mode=async,damping=false", 2, 1, 2).name == "ps-mode=async-damping=false-2"


def test_so_many_servers_are_a_cell_of_their_own(tmp_path):
    whole = plan("ps", servers=1).joined(plan("ps", servers=2))
    names = [cell.name for cell in whole.cells]
    assert names == ["ps-1", "ps-2", "ps-1-s2", "ps-2-s2"]
    assert [cell.way for cell in whole.cells] == ["ps", "ps", "ps, 2 servers", "ps, 2 servers"]


def test_a_folder_is_of_one_study_at_a_time(tmp_path):
    study = Study(tmp_path / "study")
    with closing(study.claim()):
        with pytest.raises(UsageError, match=rf"--out .*study: in use by another study \(pid {os.getpid()} on"):
            study.claim()
        study.begin(plan())
    study.claim().close()


def test_a_file_is_no_place_for_a_study(tmp_path):
    (tmp_path / "README.md").write_text("")
    for place in ("README.md", "README.md/below"):
        with pytest.raises(UsageError, match=r"--out .*README\.md.*: cannot be a study's folder \(Not a directory\)"):
            Study(tmp_path / place).claim()
