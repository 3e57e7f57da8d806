"""The story: plain words that are true of every state a run can be in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from a_training import END, EPOCH, SAVE, START, TRAIN, VAL, judged, predictions, reported

from shoal.base.errors import UsageError
from shoal.base.run import Run
from shoal.recipe.load import dump, load
from shoal.report.page import page
from shoal.report.reading import Reading
from shoal.report.shares import brake, shares
from shoal.report.sinks import Event
from shoal.report.story import compared, interval, percent, story
from shoal.report.tables import summary

FULL = (START, TRAIN, EPOCH, VAL, SAVE, END)


def said(folder: Path, *events: Event) -> str:
    return " ".join(story(Reading.of(judged(folder, *events))))


def test_of_a_finished_training(tmp_path: Path) -> None:
    text = said(tmp_path, *FULL)
    assert text.startswith(
        "digits-cnn (33,338 parameters) was trained on 1,438 images for 2 epochs in 13.4 s by 2 workers."
    )
    assert "it names 97.5 % of 359 validation images correctly (95 % interval 95.3 % to 98.7 %)" in text
    assert "The hardest class is ship (2 of 3 right), the easiest dog <b> (3 of 4)." in text


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"reason": "signal"}, "It was stopped by a signal, and can go on."),
        ({"reason": "desired_accuracy"}, "having reached the desired accuracy"),
        ({"wait_share": 0.4}, "went into waiting for images; more threads that decode (data.threads)"),
        ({"program_s": 200.0}, "Most of its time, 93.8 %, went into starting and ending, which a longer training"),
        ({"program_s": 13.5}, "Nothing held it back but the arithmetic: 90.7 %"),
    ],
)
def test_how_it_ended_and_what_held_it_back(tmp_path: Path, change: Event, told: str) -> None:
    assert told in said(tmp_path, *FULL[:-1], END | change)


TIME: Event = {
    "event": "time", "step": 46, "epoch": 1, "images": 2876, "steps": 45, "own_s": 0.0, "slowest": None, "ranks": [],
    "parts": {"input": 0.0, "transfer": 0.0, "compute": 12.0, "exchange": 0.0, "waiting": 0.0, "update": 0.0,
              "other": 0.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("start", "val", "said_so", "unsaid"),
    [
        ({}, {"seconds": 0.6}, "Nothing held it back but the arithmetic", "What held"),
        ({}, {}, "What held it back most, its start aside: batches of 64 are so small that", "Nothing"),
        ({"strategy": "fsdp"}, {"seconds": 0.6}, "went into computing and exchanging gradients", "othing held"),
    ],
    ids=["free", "small batch", "fsdp"],
)
def test_nothing_held_it_back_only_where_nothing_is_said_to(
    tmp_path: Path, start: Event, val: Event, said_so: str, unsaid: str
) -> None:
    end = END | {"first_step_s": 0.5, "program_s": 13.3}
    text = said(tmp_path, START | start, TRAIN, EPOCH, VAL | val, SAVE, TIME, end)
    assert said_so in text and unsaid not in text


TEACHER = {"name": "resnet50d", "from": "runs/large", "weights": "0123456789abcdef"}


def test_a_teacher_is_named_and_both_losses_are_drawn(tmp_path: Path) -> None:
    taught = TRAIN | {"loss_label": 0.5, "loss_distill": 1.5}
    run = judged(tmp_path, START | {"teacher": TEACHER}, taught, VAL, END)
    reading = Reading.of(run)
    assert "It learnt from a teacher, resnet50d of runs/large." in story(reading)
    html = page([reading])
    assert "Training: the whole loss; validation: cross-entropy." in html
    assert "What the loss is made of" in html and "resnet50d of runs/large" in html
    assert "teacher      resnet50d of runs/large, weights 0123456789ab" in re.sub(r" {2,}", "      ", summary(run))
    assert "What the loss is made of" not in page([Reading.of(judged(tmp_path / "b", *FULL))])


def test_overfitting_and_a_training_that_was_too_short(tmp_path: Path) -> None:
    low = VAL | {"top1": 0.6, "correct1": 215}
    text = said(tmp_path / "a", START, low, EPOCH | {"top1": 0.99}, low | {"step": 46, "epoch": 1}, END)
    assert "much better (99.0 % in the last epoch) than new ones (60.0 %)" in text
    rising = [VAL | {"step": step, "top1": 0.1 * step} for step in (1, 2, 3)]
    assert "still getting better" in said(tmp_path / "b", START, *rising, END)
    assert "still getting better" not in said(tmp_path / "c", START, *rising, rising[0], END)


def test_under_way_broken_off_and_dead_at_the_start(tmp_path: Path) -> None:
    run = judged(tmp_path / "a", *FULL[:-1])
    run.log("worker", 1).parent.mkdir()
    run.log("worker", 0).write_text("Epoch[0] …\nERROR: the disk is full\n\n")
    (text, *_) = story(Reading.of(run))
    assert "broke off after 1 of 2 epochs" in text and text.endswith("Its log ends: ERROR: the disk is full")
    under_way = Reading(run, Reading.of(run).events, (4242, "elsewhere"))
    assert "is being trained on 1,438 images by 2 workers: 1 of 2 epochs so far." in story(under_way)[0]
    dead = Run(tmp_path / "b")
    dead.log("worker", 0).parent.mkdir(parents=True)
    dead.recipe.write_text(dump(load("digits").recipe))
    assert story(Reading.of(dead)) == ["This training ended before its first step."]
    assert Reading.of(dead).judged[1] == "no checkpoint is marked as the best yet"
    with pytest.raises(UsageError, match="not a run; to find runs"):
        Reading.of(reported(tmp_path / "c"))


def test_time_shares_are_all_the_time_there_is(tmp_path: Path) -> None:
    found = shares(Reading.of(judged(tmp_path / "a", *FULL)))
    assert sum(share.share for share in found) == pytest.approx(1, abs=1e-12)
    assert {share.name: round(share.seconds, 3) for share in found} == {
        "computing and exchanging gradients": 12.251, "waiting for images": 0.049, "validating": 0.1,
        "saving checkpoints": 0.05, "starting and ending": 3.55,
    }  # fmt: skip
    held = brake(found)
    assert held is not None and held.name == "starting and ending"
    later = TRAIN | {"step": 40, "images": 2496, "trained_s": 7.7, "wait_share": 0.5}
    under_way = shares(Reading.of(judged(tmp_path / "b", START, TRAIN, later)))
    assert under_way[1].seconds == pytest.approx(0.003 * 5.7 + 0.5 * 2.0, abs=1e-12)
    resumed = shares(Reading.of(judged(tmp_path / "c", START, TRAIN, START | {"resumed_from": 20}, END)))
    assert resumed[-1].seconds == 0, "what earlier sittings needed to start is not known"
    assert shares(Reading.of(judged(tmp_path / "d", START))) == []


def test_percent_and_interval() -> None:
    shown = [percent(share) for share in (0, 1e-7, 0.0002, 0.5, 0.98765, 0.9996, 0.999999, 1)]
    assert shown == ["0 %", "under 0.01 %", "0.02 %", "50.0 %", "98.8 %", "99.96 %", "over 99.99 %", "100 %"]
    assert interval(10, 20) == pytest.approx((0.2993, 0.7007), abs=1e-4)  # Wilson's, by a table
    low, high = interval(20, 20)
    assert high == 1.0 and 0.8 < low < 0.9
    assert interval(0, 0) == (0.0, 1.0)


def test_runs_are_compared_image_by_image(tmp_path: Path) -> None:
    one = judged(tmp_path / "one", START, VAL, END)
    other = judged(tmp_path / "other", START, VAL | {"top1": 0.9, "correct1": 323}, END)
    changed = predictions()
    changed.guesses[:4, 0] = (changed.guesses[:4, 0] + 1) % 3
    other.predictions(23).write_bytes(changed.to_bytes())
    text = compared([Reading.of(other), Reading.of(one)])
    assert text[0] == "The best is one: 97.5 % of 359 validation images named correctly; other: 90.0 %."
    assert text[1].startswith(
        "one is right on 4 images where other is wrong, the other way round it is 0: no more than"
    )
    assert compared([Reading.of(judged(tmp_path / "new", START))]) == ["None of these runs has been validated yet."]
