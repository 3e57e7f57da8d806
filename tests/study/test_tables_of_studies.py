"""The tables of a study, from run folders that are written here: no training."""

import csv
import json

import pytest

from shoal.study.conduct import write
from shoal.study.grid import Grid
from shoal.study.measured import Spread, rows
from shoal.study.study import Study
from shoal.study.words import conclusion, warnings

NO_TIME = dict.fromkeys(("input", "transfer", "exchange", "waiting", "update", "other"), 0.0)
SPEEDS = {("ddp", 1): (100.0, 110.0, 90.0), ("ddp", 2): (190.0, 180.0, 170.0), ("ps", 2): (150.0, 155.0, 160.0)}


@pytest.fixture
def grid():
    cells = Grid.plan("digits", (), ("ddp", "ps"), (1, 2)).cells
    return Grid("digits", (), tuple(cell for cell in cells if cell.name != "ps-1"), 3, 0, False)


@pytest.fixture
def study(tmp_path, grid):
    study = Study(tmp_path / "study")
    study.begin(grid)
    for cell in grid.cells:
        for repeat, speed in enumerate(SPEEDS[cell.strategy, cell.workers]):
            a_run(study.run(cell, repeat), speed, 0.9 + 0.01 * repeat)
    return study


def a_run(run, speed: float, top1: float, *, code: str = "c0de", reason: str = "length") -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    time = {"event": "time", "images": 900, "steps": 9, "own_s": 0.0, "slowest": None, "ranks": []}
    events = [
        {"event": "start", "num_ranks": 2, "batch": 100, "images": 0, "strategy": "ddp"},
        {**time, "parts": {**NO_TIME, "compute": 8.0, "exchange": 1.0}},
        {"event": "val", "images": 1000, "top1": top1, "seconds": 1.0, "count": 100},
        {"event": "end", "step": 10, "images_per_s": speed, "trained_s": 9.0, "paused_s": 1.0, "top1": top1,
         "peak_bytes": 1 << 28, "bytes_per_step": 500.0, "first_step_s": 3.0, "program_s": 13.0, "reason": reason},
    ]  # fmt: skip
    run.metrics_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    run.environment.write_text(json.dumps({"code": code}))


def test_every_printed_ratio_follows_from_the_runs(study, grid):
    write(study, grid)
    with open(study.runs_csv) as file:
        runs = list(csv.DictReader(file))
    with open(study.cells_csv) as file:
        cells = list(csv.DictReader(file))
    assert len(runs) == 9 and len(cells) == 3

    def speeds(strategy, workers):
        return [
            float(run["images_per_s"])
            for run in sorted(runs, key=lambda run: int(run["repeat"]))
            if (run["strategy"], run["workers"]) == (strategy, workers)
        ]

    for cell in cells:
        own = speeds(cell["strategy"], cell["workers"])
        over = speeds(cell["base_strategy"], cell["base_workers"])
        ratios = sorted(a / b for a, b in zip(own, over, strict=True))
        assert float(cell["images_per_s"]) == sorted(own)[1]
        assert [float(cell[key]) for key in ("speed_up_low", "speed_up", "speed_up_high")] == ratios
        times = int(cell["workers"]) / int(cell["base_workers"])
        assert float(cell["efficiency"]) == ratios[1] / times
        assert float(cell["images_per_s_per_worker"]) == sorted(own)[1] / int(cell["workers"])
    held = study.read_rows()
    assert [row["speed_up"] for row in held["rows"]] == [float(cell["speed_up"]) for cell in cells]
    text = study.markdown.read_text()
    for cell in cells[1:]:
        assert f"{float(cell['speed_up']):.2f} (" in text
    for run in runs:
        assert f"]({run['run']})" in text and (study.folder / run["run"]).is_dir()


def test_a_strategy_without_a_single_worker_is_compared_with_one_that_has_it(study, grid):
    ps = rows(study, grid)[2]
    assert ps.base is not None and ps.base.where == "ddp, 1 worker"
    assert ps.speed_up == Spread(1.5, 155 / 110, 160 / 90, 3)


def test_pictures_are_drawn_as_png_and_svg(study, grid):
    write(study, grid)
    for name in ("throughput", "efficiency", "accuracy", "curves", "shares"):
        assert study.picture(name, "png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in study.picture(name, "svg").read_text()
        assert f"({name}.svg)" in study.markdown.read_text()


def test_the_first_paragraph_says_which_way_is_best_and_why(study, grid):
    said = conclusion(grid, rows(study, grid))
    assert said.startswith("Fastest here: ddp, 2 workers, 180 (170 to 190, n = 3) images/s, 1.89 x ddp, 1 worker")
    assert "10% goes to exchanging gradients" in said
    assert "ps, 2 workers and 1 server reaches 0.86 of that" in said
    assert "accuracy is the same within its spread" in said


def test_runs_that_overlap_are_not_told_apart(study, grid):
    for repeat, speed in enumerate((175.0, 185.0, 180.0)):
        a_run(study.run(grid.cells[2], repeat), speed, 0.9)
    said = conclusion(grid, rows(study, grid))
    assert "Not told apart from it by these runs: ps, 2 workers" in said or "ddp, 2 workers, 180" in said


def test_of_equal_ways_the_simplest_is_advised(study, grid):
    asynchronous = Grid.plan("digits", (), ["ps:mode=async"], [2]).cells
    both = grid.joined(Grid.plan("digits", (), ["ddp", "ps:mode=async"], [2]))
    assert [cell.same_model for cell in both.cells if cell == asynchronous[0]] == [False]
    for repeat, speed in enumerate((175.0, 185.0, 195.0)):
        a_run(study.run(asynchronous[0], repeat), speed, 0.9)
    said = conclusion(both, rows(study, both))
    assert said.startswith("Fastest here: ps:mode=async, 2 workers and 1 server, 185")
    assert (
        "Of these, ddp, 2 workers is the simplest: any number of workers trains the same model and no server is needed."
        in said
    )


def test_what_a_reader_must_know_stands_in_the_table(study, grid):
    a_run(study.run(grid.cells[0], 1), 100.0, 0.9, code="01d")
    a_run(study.run(grid.cells[0], 2), 100.0, 0.9, reason="signal")
    study.run(grid.cells[1], 1).metrics_file.unlink()
    log = study.log(grid.cells[1], 1)
    log.parent.mkdir()
    log.write_text("$ shoal train …\nworker 1 was killed by SIGKILL\n")
    told = "\n".join(warnings(rows(study, grid), grid))
    assert "2 versions of Shoal" in told and "ddp, 1 worker, repeat 3: unfinished" in told
    assert "ddp, 2 workers, repeat 2: failed: worker 1 was killed by SIGKILL" in told
    write(study, grid)
    assert "killed by SIGKILL" in study.markdown.read_text()


def test_a_study_without_any_result(tmp_path, grid):
    study = Study(tmp_path / "empty")
    study.begin(grid)
    write(study, grid)
    assert "No training of this study has ended well" in study.markdown.read_text()


def test_the_page_is_whole_in_itself_and_links_every_run(study, grid):
    write(study, grid)
    page = study.page.read_text()
    assert page.count("data:image/svg+xml;base64,") == 5 and "http://" not in page and "<script" not in page
    assert conclusion(grid, rows(study, grid)) in page
    for run in (run for row in rows(study, grid) for run in row.runs):
        assert f'href="{run.path}/report.html"' in page
