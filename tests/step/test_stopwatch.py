import time

import torch
from a_gang import together

from shoal.step.stopwatch import COMPUTE, INPUT, OTHER, PARTS, Stopwatch
from shoal.train.timing import Timing


def test_parts_sum_to_the_wall():
    watch = Stopwatch()
    watch.reset()
    began = time.perf_counter()
    for _ in range(3):
        watch.to(INPUT)
        time.sleep(0.002)
        watch.to(COMPUTE)
        time.sleep(0.004)
        watch.to(OTHER)
        watch.lap()
    wall = time.perf_counter() - began
    steps = watch.read()
    assert steps.shape == (3, len(PARTS))
    assert abs(float(steps.sum()) - wall) < 0.1 * wall
    assert (steps[:, INPUT] >= 0.002).all() and (steps[:, COMPUTE] >= 0.004).all()
    assert len(watch.read()) == 0


def test_a_pause_belongs_to_no_step():
    watch = Stopwatch()
    with watch.paused():
        time.sleep(0.05)
    watch.lap()
    assert float(watch.read().sum()) < 0.04


def test_marks_within_a_pause_do_not_end_it():
    watch = Stopwatch()
    with watch.paused():
        watch.to(COMPUTE)  # by a rig that is asked to meet, say
        time.sleep(0.05)
    watch.lap()
    assert float(watch.read().sum()) < 0.04


def test_what_was_before_a_reset_is_forgotten():
    watch = Stopwatch()
    watch.lap()
    time.sleep(0.02)
    watch.reset()
    watch.lap()
    steps = watch.read()
    assert len(steps) == 1 and float(steps.sum()) < 0.015


def _with(rows: list[list[float]], *, in_step: bool = True):
    """What `Timing` tells of workers whose watches hold `rows`: of each step (compute, exchange) seconds."""

    def tell(gang):
        gang.watch.reset()
        for compute, exchange in zip(*rows[gang.rank], strict=True):
            gang.watch._rows.append([0, 0, compute, exchange, 0, 0, 0, 0])
        return Timing(gang, together=in_step).read(0.5)

    return together(len(rows), tell)[0]


def test_who_stands_in_the_exchange_shortest_came_last():
    told = _with([[[1.0, 1.0], [0.5, 0.6]], [[1.4, 1.0], [0.1, 0.6]], [[1.0, 1.5], [0.5, 0.1]]])
    assert told["steps"] == 2
    assert abs(told["parts"]["exchange"] - 0.2) < 1e-6
    assert told["parts"]["waiting"] == 0.6  # of each: 0.4 + 0.5, 0 + 0.5, 0.4 + 0
    assert told["slowest"]["rank"] == 2  # half a second behind, once; worker 1 was 0.4 s behind
    assert told["slowest"]["because"] == "compute"
    assert [row["last"] for row in told["ranks"]] == [0, 1, 1]
    assert [row["made"] for row in told["ranks"]] == [0.5] * 3


def test_waiting_is_what_others_stood_longer():
    told = _with([[[1.0], [0.75]], [[1.5], [0.25]]])
    assert told["parts"]["exchange"] == 0.25
    assert told["parts"]["waiting"] == 0.25  # half a second of one of two workers
    assert told["slowest"] == {"rank": 1, "last": 1, "of": 1, "gain_s": 0.5, "because": "compute"}
    assert sum(told["parts"].values()) == 1.75


def test_only_steps_in_which_workers_met_tell_who_came_last():
    told = _with([[[0.1, 0.1, 0.1], [0.0, 0.0, 0.7]], [[0.3, 0.3, 0.3], [0.0, 0.0, 0.1]]])
    assert told["steps"] == 3 and told["parts"]["exchange"] == 0.1 and told["parts"]["waiting"] == 0.3
    assert {name: told["slowest"][name] for name in ("rank", "last", "of")} == {"rank": 1, "last": 1, "of": 1}
    assert [row["last"] for row in told["ranks"]] == [0, 1]


def test_nobody_comes_last_where_nobody_met():
    told = _with([[[1.0], [0.0]], [[2.0], [0.0]]])
    assert told["slowest"] is None and told["parts"]["compute"] == 1.5 and told["parts"]["waiting"] == 0


def test_workers_who_go_their_own_ways_may_have_done_unequal_numbers_of_steps():
    told = _with([[[1.0, 1.0], [0.5, 0.5]], [[1.0], [0.5]]], in_step=False)
    assert told["slowest"] is None and told["steps"] == 2
    assert told["parts"]["compute"] == 1.5 and told["parts"]["exchange"] == 0.75


def test_a_lone_worker_waits_for_nobody():
    told = _with([[[1.0], [0.5]]])
    assert told["slowest"] is None and told["parts"]["waiting"] == 0 and told["parts"]["exchange"] == 0.5


def test_nothing_is_told_of_no_steps():
    assert _with([[[], []], [[], []]]) == {}


def test_its_own_time_is_on_the_account():
    watch = Stopwatch()
    before = watch.own_s
    with watch.charge():
        time.sleep(0.01)
    watch.lap()
    watch.read()
    assert watch.own_s - before >= 0.01
    assert torch.isfinite(torch.tensor(watch.own_s))
