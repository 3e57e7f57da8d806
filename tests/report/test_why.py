import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.base.errors import ShoalError
from shoal.base.run import Run
from shoal.cli.why import command
from shoal.report.spent import PARTS, Spent
from shoal.report.why import Why

NONE = dict.fromkeys(("input", "transfer", "compute", "exchange", "waiting", "update", "other"), 0.0)


def a_run(
    folder: Path,
    *times: dict,
    workers: int = 2,
    validation: float = 1.0,
    end: bool = True,
    batch: int = 100,
    strategy: str = "ddp",
) -> Run:
    """A run that told `times`: of each the seconds of its parts, and what else a `time` event holds."""
    run = Run(folder)
    start = {"event": "start", "num_ranks": workers, "batch": batch, "images": 0, "strategy": strategy}
    events: list[dict] = [start]
    for number, told in enumerate(times, 1):
        extra = {key: told.pop(key) for key in ("slowest", "ranks") if key in told}
        event = {"event": "time", "images": number * 10 * batch, "steps": 10, "own_s": 0.01 * number}
        events.append({**event, "parts": {**NONE, **told}, "slowest": None, "ranks": [], **extra})
    events.append({"event": "val", "seconds": validation, "count": 1000})
    events.append({"event": "save", "seconds": 0.5})
    if end:
        events.append({"event": "end", "first_step_s": 4.0, "program_s": 20.0})
    run.metrics_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    return run


def late(rank: int, last: int, gain_s: float, because: str = "compute", made: tuple[float, float] = (0, 0)) -> dict:
    """made: seconds of loading, of the late worker and of the other."""
    ranks = [
        {"rank": other, "compute": 8.0, "last": last if other == rank else 10 - last, "made": made[other != rank]}
        for other in range(2)
    ]
    return {"slowest": {"rank": rank, "last": last, "gain_s": gain_s, "because": because}, "ranks": ranks}


def started(run: Run) -> Path:
    run.recipe.write_text("")
    return run.folder


def test_parts_sum_to_the_program(tmp_path):
    spent = Spent.of(a_run(tmp_path, {"compute": 5.0}, {"compute": 4.0, "input": 1.0}))
    assert tuple(spent.parts) == PARTS
    assert sum(spent.parts.values()) == spent.total_s == 20.0
    assert spent.parts["other"] == 20 - 4 - 9 - 1 - 1 - 0.5
    assert sum(Why.of(spent).shares.values()) == pytest.approx(1)


def test_a_run_under_way_is_told_as_far_as_it_went(tmp_path):
    spent = Spent.of(a_run(tmp_path, {"compute": 5.0}, end=False))
    assert spent.total_s == sum(spent.parts.values()) == 6.5


def test_only_the_last_sitting_counts(tmp_path):
    run = a_run(tmp_path, {"compute": 5.0})
    first = run.metrics_file.read_text()
    a_run(tmp_path, {"compute": 7.0})
    run.metrics_file.write_text(first + run.metrics_file.read_text())
    assert Spent.of(run).parts["compute"] == 7.0


@pytest.mark.parametrize(
    ("told", "kind", "rank"),
    [
        ({"compute": 5.0, "input": 6.0}, "input", None),
        ({"compute": 5.0, "exchange": 6.0}, "exchange", None),
        ({"compute": 5.0, "transfer": 6.0}, "transfer", None),
        ({"compute": 8.0, "waiting": 2.0, **late(1, 9, 4.0)}, "straggler", 1),
        ({"compute": 8.0, "waiting": 2.0, **late(0, 10, 4.0, "input"), "input": 2.0}, "straggler", 0),
        ({"compute": 8.0, "waiting": 2.0, **late(0, 10, 4.0, "input", (5, 1)), "input": 2.0}, "straggler", 0),
        ({"compute": 8.0, "waiting": 2.0, **late(0, 10, 4.0, "input", (5, 4)), "input": 2.0}, "input", None),
        ({"compute": 8.0, "waiting": 2.0, **late(0, 5, 2.0)}, "uneven", None),
    ],
)
def test_the_strongest_brake_comes_first(tmp_path, told, kind, rank):
    first = Why.of(Spent.of(a_run(tmp_path, told))).brakes[0]
    assert (first.kind, first.rank) == (kind, rank)


def test_what_would_be_gained_leaves_the_start_out(tmp_path):
    first = Why.of(Spent.of(a_run(tmp_path, {"compute": 5.0, "input": 8.0}))).brakes[0]
    assert first.gain_s == 8 and first.speed_up == 16 / 8


def test_a_slow_validation(tmp_path):
    first = Why.of(Spent.of(a_run(tmp_path, {"compute": 5.0}, validation=8.0))).brakes[0]
    assert first.kind == "validation"


def test_a_batch_that_is_too_small_is_known_by_the_validation(tmp_path):
    small = a_run(tmp_path, {"compute": 10.0, "exchange": 3.0}, validation=0.1, batch=8)
    first = Why.of(Spent.of(small)).brakes[0]
    assert first.kind == "small batch"
    assert first.gain_s == pytest.approx(13.0 + 0.0 + Spent.of(small).parts["other"] - 3 * 0.1 / 1000 * 80)


def test_nothing_holds_up_who_only_computes(tmp_path):
    why = Why.of(Spent.of(a_run(tmp_path, {"compute": 15.4}, validation=0.05, batch=1000, workers=1)))
    assert [brake.kind for brake in why.brakes if brake.kind != "small batch"] == []


def test_nobody_says_that_nothing_holds_up_who_exchanges_while_it_computes(tmp_path):
    run = a_run(tmp_path, {"compute": 14.4}, batch=100_000, validation=0.5, strategy="fsdp")
    why = Why.of(Spent.of(run))
    assert why.brakes == ()
    assert why.verdict.startswith("computing and the exchange within it take 90%") and "nothing" not in why.verdict
    told = CliRunner().invoke(command, [str(started(run))]).output
    assert "compute holds the exchange and waiting for others, too" in told and "othing" not in told
    alone = a_run(tmp_path, {"compute": 14.4}, batch=100_000, validation=0.5, strategy="fsdp", workers=1)
    assert "nothing holds it up" in Why.of(Spent.of(alone)).verdict


def test_stages_hand_on_more_than_gradients(tmp_path):
    first = Why.of(Spent.of(a_run(tmp_path, {"compute": 5.0, "exchange": 6.0}, strategy="pipeline"))).brakes[0]
    assert first.text == "stages stand still for one another or hand on 38% of the time"


def test_a_straggler_is_known_by_the_steps_in_which_workers_met(tmp_path):
    told = late(1, 2, 4.0)
    told["slowest"]["of"] = 2
    first = Why.of(Spent.of(a_run(tmp_path, {"compute": 8.0, "waiting": 2.0, **told}))).brakes[0]
    assert (first.kind, first.rank) == ("straggler", 1)
    assert first.text.startswith("worker 1 comes last to 2 of 2 exchanges")


def test_a_run_that_told_nothing(tmp_path):
    with pytest.raises(ShoalError, match="no training has reported"):
        Spent.of(Run(tmp_path))
    with pytest.raises(ShoalError, match="nothing of where time went"):
        Spent.of(a_run(tmp_path))


def test_one_slow_worker_is_no_small_batch(tmp_path):
    told = late(0, 10, 12.0)
    told["ranks"][0]["compute"], told["ranks"][1]["compute"] = 14.0, 0.2
    run = a_run(tmp_path, {"compute": 7.1, "waiting": 6.0, **told}, validation=0.1)
    assert Why.of(Spent.of(run)).brakes[0].kind == "straggler"


def test_what_a_slow_worker_costs_is_not_the_batch_s_fault(tmp_path):
    told = late(0, 10, 12.0)
    told["ranks"][0]["compute"], told["ranks"][1]["compute"] = 14.0, 2.0
    run = a_run(tmp_path, {"compute": 8.0, "waiting": 6.0, **told}, validation=0.1)
    straggler, small = Why.of(Spent.of(run)).brakes
    assert (straggler.kind, straggler.gain_s, small.kind) == ("straggler", 12.0, "small batch")
    assert small.gain_s == pytest.approx(2.0 + Spent.of(run).parts["other"] - 3 * 0.1 / 1000 * 1000)
