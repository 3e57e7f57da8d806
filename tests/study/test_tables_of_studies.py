"""The tables of a study, from run folders that are written here: no training."""

import csv
import json
from dataclasses import replace

import pytest

from shoal.study.conduct import write
from shoal.study.grid import Grid
from shoal.study.measured import Spread, read_run, rows
from shoal.study.pictures import _by_way
from shoal.study.study import Study
from shoal.study.words import conclusion, warnings
from shoal.study.write import shown

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


def a_run(run, speed: float, top1: float, *, reason: str = "length", told=(), **environment: object) -> None:
    """told: events between start and end."""
    run.folder.mkdir(parents=True, exist_ok=True)
    time = {"event": "time", "images": 900, "steps": 9, "own_s": 0.0, "slowest": None, "ranks": []}
    events = [
        {"event": "start", "num_ranks": 2, "batch": 100, "images": 0, "strategy": "ddp"},
        *told,
        {**time, "parts": {**NO_TIME, "compute": 8.0, "exchange": 1.0}},
        {"event": "val", "images": 1000, "top1": top1, "seconds": 1.0, "count": 100},
        {"event": "end", "step": 10, "images_per_s": speed, "trained_s": 9.0, "paused_s": 1.0, "top1": top1,
         "peak_bytes": 1 << 28, "bytes_per_step": 500.0, "first_step_s": 3.0, "program_s": 13.0, "reason": reason},
    ]  # fmt: skip
    run.metrics_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    run.environment.write_text(json.dumps({"code": "c0de", **environment}))


def a_log(study, cell, repeat: int, *lines: str) -> None:
    log = study.log(cell, repeat)
    log.parent.mkdir(exist_ok=True)
    log.write_text("\n".join(("$ shoal train …", *lines)) + "\n")


def cut_short(run) -> None:
    """As a training leaves its folder that dies on the way."""
    run.metrics_file.write_text(run.metrics_file.read_text().partition('{"event": "val"')[0])


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
        assert cell["base_servers"] == "0"
        ratios = sorted(a / b for a, b in zip(own, over, strict=True))
        assert float(cell["images_per_s"]) == sorted(own)[1]
        assert [float(cell[key]) for key in ("speed_up_low", "speed_up", "speed_up_high")] == ratios
        times = int(cell["workers"]) / int(cell["base_workers"])
        assert float(cell["efficiency"]) == ratios[1] / times
        assert float(cell["images_per_s_per_worker"]) == sorted(own)[1] / int(cell["workers"])
    held = json.loads(study.rows.read_text())
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
    assert "1.50 (1.41–1.78) over ddp, 1 worker" in shown(ps)
    assert "1.89 (1.64–1.90)" not in shown(ps) and "1.89 (1.64–1.90)" in shown(rows(study, grid)[1])


def test_other_servers_are_another_row(tmp_path):
    whole = Grid.plan("digits", (), ["ps"], (1, 2)).joined(Grid.plan("digits", (), ["ps"], (1, 2), servers=2))
    study = Study(tmp_path)
    for cell, speed in zip(whole.cells, (100.0, 150.0, 120.0, 240.0), strict=True):
        for repeat in range(3):
            a_run(study.run(cell, repeat), speed, 0.9)
    *_, last = rows(study, whole)
    assert last.base is not None and last.base.where == "ps, 1 worker and 2 servers"
    assert last.speed_up == Spread(2.0, 2.0, 2.0, 3) and "2.00 (2.00–2.00)" in shown(last)
    assert [name for name, *_ in _by_way(rows(study, whole))] == ["ps", "ps, 2 servers"]


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
    a_log(study, grid.cells[1], 1, "worker 1 was killed by SIGKILL", "exit 1")
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


def test_a_row_links_its_trainings_and_tells_those_that_failed(study, grid):
    cell = grid.cells[1]
    cut_short(study.run(cell, 1))
    a_log(study, cell, 1, "killed by SIGKILL", "exit 1")
    write(study, grid)
    row = next(line for line in study.markdown.read_text().splitlines() if line.startswith("| ddp | 2 |"))
    first, second, third = (f"[{number}](runs/ddp-2-{number})" for number in (1, 2, 3))
    assert f"| 2 ({first}, {second} failed, {third}) |" in row
    page = study.page.read_text()
    row = page[page.index("runs/ddp-2-1/report.html") :].partition("</td>")[0]
    assert ">2</a> failed, <a " in row and "runs/ddp-2-3/report.html" in row


def test_a_row_tells_in_a_word_what_the_warning_tells_wholly(study, grid):
    metrics = study.run(grid.cells[1], 1).metrics_file
    metrics.write_text("garbage\n" + metrics.read_text())
    write(study, grid)
    text = study.markdown.read_text()
    assert "[2](runs/ddp-2-2) damaged," in text and "metrics.jsonl:1: not a JSON line of an event" in text


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (("ERROR: step 20: loss is not finite", "exit 1"), "failed: step 20: loss is not finite"),
        (
            ("worker 1 failed first: exit 1", "step 1: not finite", "log: worker-1.log", "exit 1"),
            "failed: worker 1 failed first: exit 1: step 1: not finite",
        ),
        (
            ("worker 1 failed first: killed by SIGKILL (exit -9)", "Epoch[0]", "log: worker-1.log", "exit 1"),
            "failed: worker 1 failed first: killed by SIGKILL (exit -9)",
        ),
        (("Epoch[0] Batch [20]", "killed by SIGKILL"), "failed: killed by SIGKILL"),
        (("Epoch[0] Batch [20]",), "unfinished"),
        (("Stopped; the state after step 20 is saved.", "exit 75"), "unfinished"),
        ((), "unfinished"),
    ],
    ids=["loss", "worker", "worker-killed", "killed", "study-killed", "stopped", "nothing-said"],
)
def test_a_training_that_died_on_the_way_says_why(study, grid, said, state):
    cut_short(study.run(grid.cells[0], 0))
    a_log(study, grid.cells[0], 0, *said)
    assert read_run(study, grid.cells[0], 0).state == state


@pytest.mark.parametrize(
    "event",
    [
        {"event": "staleness", "workers": 1},
        {"event": "note", "level": "warning", "text": "1 workers go on with step 7"},
    ],
    ids=lambda event: event["event"],
)
def test_a_training_that_lost_workers_is_not_done(study, grid, event):
    ps = grid.cells[2]
    a_run(study.run(ps, 0), 150.0, 0.9, told=[{"event": "staleness", "workers": 2}])
    assert read_run(study, ps, 0).done
    a_run(study.run(ps, 0), 75.0, 0.9, told=[event])
    assert read_run(study, ps, 0).state == "lost workers: 1 of 2 were left"


@pytest.mark.parametrize(
    ("logged", "speed"),
    [
        (((100, 5.0), (200, 6.0), (400, 8.0)), 100.0),
        (((400, 5.0), (500, 6.0)), 77.0),
        (((500, 6.0),), 77.0),
    ],
    ids=["long", "short", "one-line"],
)
def test_a_slow_first_step_is_no_part_of_the_speed(study, grid, logged, speed):
    told = [{"event": "train", "images": images, "trained_s": seconds} for images, seconds in logged]
    a_run(study.run(grid.cells[0], 0), 77.0, 0.9, told=told)
    assert read_run(study, grid.cells[0], 0).images_per_s == speed


def test_machines_and_versions_of_torch_are_told_apart(study, grid):
    a_run(study.run(grid.cells[0], 0), 100.0, 0.9, torch="2.9", device="cpu", cpu="Xeon", cores=2)
    a_run(study.run(grid.cells[0], 1), 100.0, 0.9, torch="2.9", device="cpu", cpu="Xeon", cores=2)
    assert warnings(rows(study, grid), grid) == []
    a_run(study.run(grid.cells[0], 1), 100.0, 0.9, torch="3.0", device="cpu", cpu="Xeon", cores=4)
    told = "\n".join(warnings(rows(study, grid), grid))
    assert "runs with 2 versions of torch stand in one table (2.9; 3.0): not comparable" in told
    assert "on 2 kinds of machines stand in one table (Xeon, 2 cores; Xeon, 4 cores)" in told


def test_one_training_of_each_tells_no_spread(tmp_path, grid):
    one, study = replace(grid, repeats=1), Study(tmp_path / "one")
    for cell, top1 in zip(one.cells, (0.3, 0.9, 0.5), strict=True):
        a_run(study.run(cell, 0), 100.0, top1)
    said = conclusion(one, rows(study, one))
    assert "same within its spread" not in said
    assert said.endswith("Validation accuracy 0.3000 to 0.9000, highest with ddp, 2 workers; n = 1 tells no spread.")
