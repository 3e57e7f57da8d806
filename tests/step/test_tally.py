"""Counts and means: which image is correct, and sums that do not depend on who added them."""

from __future__ import annotations

import math

import pytest
import torch
from a_gang import a_batch, together
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.data.batches import Batch
from shoal.data.order import share
from shoal.data.source import NO_IMAGE, NO_LABEL
from shoal.step.gang import Alone
from shoal.step.meters import Meters, Metrics, StepOutput, hits
from shoal.step.tasks.distill import Distill, Teacher

# One batch


def plain(logits: list[list[float]], labels: list[int]) -> list[int]:
    """[correct at rank 1, correct within 5, images], image by image and class by class."""
    counts = [0, 0, 0]
    for row, label in zip(logits, labels, strict=True):
        if label < 0:
            continue
        counts[2] += 1
        if any(math.isnan(value) for value in row):
            continue
        rank = sorted(range(len(row)), key=lambda c: (-row[c], c)).index(label)
        counts[0] += rank < 1
        counts[1] += rank < 5
    return counts


@st.composite
def answers(draw) -> tuple[list[list[float]], list[int]]:
    classes, images = draw(st.integers(1, 9)), draw(st.integers(0, 6))
    value = st.sampled_from([0.0, -0.0, 1.0, 2.0, -3.5, math.inf, -math.inf, math.nan])  # few, so that ties abound
    row = st.lists(value, min_size=classes, max_size=classes)
    return (
        draw(st.lists(row, min_size=images, max_size=images)),
        draw(st.lists(st.integers(-1, classes - 1), min_size=images, max_size=images)),
    )


def counted(logits: torch.Tensor, labels: torch.Tensor) -> list[int]:
    return hits(logits, labels).sum(0).tolist()


@given(answers())
def test_hits_are_those_of_a_plain_sort(answer):
    logits, labels = answer
    held = torch.tensor(logits).reshape(len(labels), -1 if labels else 3)
    assert counted(held, torch.tensor(labels, dtype=torch.int64)) == plain(logits, labels)


@given(answers())
def test_an_image_is_judged_the_same_in_any_company(answer):
    logits, labels = answer
    if not labels:
        return
    held, known = torch.tensor(logits), torch.tensor(labels, dtype=torch.int64)
    pieces = [hits(held[n : n + 1], known[n : n + 1]) for n in range(len(labels))]
    assert torch.equal(hits(held, known), torch.cat(pieces))


def test_equal_logits_are_ordered_as_argmax_orders_them():
    logits = torch.zeros(6, 6)
    assert hits(logits, torch.arange(6))[:, 0].tolist() == (logits.argmax(1) == torch.arange(6)).tolist()
    assert counted(logits, torch.arange(6)) == [1, 5, 6]


@pytest.mark.parametrize("logits", [[math.nan, 1.0, 0.0], [1.0, math.nan, 0.0], [math.nan] * 3])
def test_a_nan_is_never_correct_not_even_among_few_classes(logits):
    assert counted(torch.tensor([logits]), torch.tensor([0])) == [0, 0, 1]


def test_an_image_without_label_does_not_count():
    assert counted(torch.eye(4), torch.tensor([0, -1, 2, -1])) == [2, 2, 2]


# Meters: dyadic losses, so that every sum is exact and every mean can be told by hand


def add(meters: Meters, shard: int, loss: float, top1: int = 0, count: int = 1) -> None:
    logits = -torch.eye(6)[torch.zeros(count, dtype=torch.int64)]  # label 0 comes last of six
    logits[:top1] *= -1
    meters.add(a_batch([0] * count, ((shard, count),)), StepOutput(torch.tensor(loss, dtype=torch.float64), logits))


def test_intervals_and_epochs_are_counted_apart():
    meters = Meters(2, Alone())
    add(meters, 0, 2.0, top1=1, count=4)
    add(meters, 1, 4.0, top1=2, count=4)
    assert meters.read_interval() == Metrics(0.75, 3 / 8, 3 / 8, 8)
    add(meters, 0, 8.0, count=8)
    assert meters.read_interval() == Metrics(1.0, 0.0, 0.0, 8)
    assert meters.read_epoch() == Metrics(14 / 16, 3 / 16, 3 / 16, 16)
    add(meters, 0, 1.0, count=2)
    assert meters.read_epoch() == Metrics(0.5, 0.0, 0.0, 2)


def test_an_epoch_that_ends_inside_an_interval_leaves_the_interval_whole():
    meters = Meters(1, Alone())
    add(meters, 0, 1.0)
    assert meters.read_epoch() == Metrics(1.0, 0.0, 0.0, 1)
    add(meters, 0, 3.0)
    assert meters.read_interval() == Metrics(2.0, 0.0, 0.0, 2)  # both, as the interval began before the epoch's end
    add(meters, 0, 5.0)
    assert meters.read_epoch() == Metrics(4.0, 0.0, 0.0, 2)  # 3 and 5: the 1 was of the epoch before


def test_nothing_seen_is_zero_not_a_division_by_it():
    meters = Meters(1, Alone())
    assert meters.read_interval() == meters.read_epoch() == Metrics(0.0, 0.0, 0.0, 0)


def test_a_batch_without_shards_adds_nothing():
    meters = Meters(3, Alone())
    add(meters, 2, 1.0)
    none = torch.zeros(0, dtype=torch.int64)
    empty = Batch(torch.zeros(0, 1, 4, 4, dtype=torch.uint8), none, none, count_global=5, shards=())
    meters.add(empty, StepOutput(torch.tensor(0.0, dtype=torch.float64), torch.zeros(0, 6)))
    assert meters.read_interval() == Metrics(1.0, 0.0, 0.0, 1)


def test_many_logits_are_counted_before_they_fill_the_memory():
    meters, reference = Meters(1, Alone()), Meters(1, Alone())
    kept = 0
    for step in range(40):
        logits = torch.eye(1000)[torch.arange(300)] * 1.0
        labels = torch.arange(300) + step % 2  # right in every second step
        batch = Batch(torch.zeros(300, 1, 1, 1), labels, labels, 300, shards=((0, 300),))
        meters.add(batch, StepOutput(torch.tensor(0.1 * step), logits))
        reference.add(batch, StepOutput(torch.tensor(0.1 * step), logits))
        reference.state()  # counts at once
        kept = max(kept, sum(output.logits.numel() for _, output, _ in meters._kept))
    assert kept <= 1 << 22
    read = meters.read_interval()
    assert read == reference.read_interval()
    assert (read.top1, read.count) == (0.5, 12_000)


def test_a_loss_in_two_parts_counts_labelled_images_apart_from_all():
    """Of eight images six have a label and one is nothing: means are over what there is of each."""
    task = Distill(teacher=Teacher(run="nowhere"), label_weight=0.5, distill_weight=2.0)
    meters = Meters(2, Alone(), task)
    labels = torch.tensor([[0, 1, NO_LABEL, 2], [NO_IMAGE, 3, 0, 1]])
    logits = torch.randn(2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    crossed = torch.nn.functional.cross_entropy(logits.view(8, 5), labels.clamp(min=-1).view(8), ignore_index=-1)
    apart = [1.5, 4.0]
    for shard in (0, 1):
        loss = 0.5 * task.label_loss(logits[shard], labels[shard]) + 2.0 * apart[shard]
        meters.add(a_batch(labels[shard].tolist(), ((shard, 4),)), StepOutput(loss, logits[shard]))
    read = meters.read_interval()
    assert read.parts is not None and (read.count, read.seen) == (6, 7)
    assert read.parts.label == pytest.approx(crossed.item(), rel=1e-12)
    assert read.parts.distill == pytest.approx(5.5 / 7, rel=1e-12)
    assert read.loss == pytest.approx((0.5 * 6 * crossed.item() + 2.0 * 5.5) / 7, rel=1e-12)
    assert read == meters.read_epoch()


def test_without_any_label_there_is_no_accuracy():
    meters = Meters(1, Alone(), Distill(teacher=Teacher(run="nowhere")))
    meters.add(a_batch([NO_LABEL] * 3), StepOutput(torch.tensor(6.0), torch.zeros(3, 5)))
    read = meters.read_interval()
    assert read.parts is not None and (read.count, read.seen, read.loss, read.parts.distill) == (0, 3, 2.0, 2.0)
    assert math.isnan(read.top1) and math.isnan(read.parts.label)


SHARDS = 4
events = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, SHARDS - 1), st.floats(0, 1e6)),
        st.sampled_from(["interval", "epoch", "restart"]),
    ),
    max_size=25,
)


def tell(script: list, num_ranks: int, restart: bool) -> list[tuple[Metrics, ...]]:
    """What each rank reads as the script goes on; `restart` takes the script's restarts seriously."""

    def work(gang) -> tuple[Metrics, ...]:
        meters, mine, read = Meters(SHARDS, gang), share(SHARDS, gang.rank, num_ranks), []
        for event in script:
            if event == "interval":
                read.append(meters.read_interval())
            elif event == "epoch":
                read.append(meters.read_epoch())
            elif event == "restart":
                if restart:
                    state = meters.state()
                    meters = Meters(SHARDS, gang)
                    meters.load(state)
            elif event[1] in mine:
                add(meters, event[1], event[2])
        return (*read, meters.read_interval(), meters.read_epoch())

    return together(num_ranks, work)


@given(script=events, num_ranks=st.integers(1, 3))
@settings(max_examples=60)
def test_means_are_the_same_bits_under_any_gang_and_any_restarts(script, num_ranks):
    (alone,) = tell(script, 1, restart=False)
    assert tell(script, num_ranks, restart=True) == [alone] * num_ranks


def test_a_restart_under_another_number_of_workers_goes_on_with_the_same_bits():
    losses = [(shard, 0.1 * (step + shard + 1)) for step in range(6) for shard in range(SHARDS)]

    def go(meters: Meters, gang, part: list) -> None:
        for shard, loss in part:
            if shard in share(SHARDS, gang.rank, gang.num_ranks):
                add(meters, shard, loss)

    def before(gang) -> torch.Tensor:
        meters = Meters(SHARDS, gang)
        go(meters, gang, losses[:12])
        return meters.state()

    def after(gang) -> Metrics:
        meters = Meters(SHARDS, gang)
        meters.load(states[0])
        go(meters, gang, losses[12:])
        return meters.read_interval()

    whole = Meters(SHARDS, Alone())
    go(whole, Alone(), losses)
    expected = whole.read_interval()
    for first, second in [(1, 3), (3, 1), (2, 4), (4, 3)]:
        states = together(first, before)
        assert all(torch.equal(state, states[0]) for state in states)
        assert together(second, after) == [expected] * second


def test_a_state_of_other_shards_begins_anew():
    meters = Meters(2, Alone())
    add(meters, 0, 1.0)
    other = Meters(3, Alone())
    other.load(meters.state())
    assert other.read_interval().count == 0
