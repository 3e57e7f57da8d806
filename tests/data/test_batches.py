"""Batches: every sample once and in order, whoever computes it, from whatever step on."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.duration import Span
from shoal.data import batches as module
from shoal.data.augment import Augment
from shoal.data.batches import Batch, Batches, Cut, eval_chunks
from shoal.data.order import order, shard_bounds
from shoal.data.shuffle import Shuffle
from shoal.data.source import Held

STEP_BY_STEP = patch.object(module, "_BLOCK_BYTES", 1)
"""As with large images: every step is prepared by itself."""
AUGMENT = Augment(pad=1, crop=3, mirror=True)


def numbered(count: int) -> Held:
    """Images that all differ, labelled by their number; every seventh has no label."""
    pixels = np.arange(count * 16, dtype=np.uint32).view(np.uint8).reshape(count, 4, 4, 4)
    labels = np.where(np.arange(count) % 7 == 6, -1, np.arange(count))
    return Held(pixels, labels, tuple(str(n) for n in range(count)), mean=(0.0,) * 4, std=(1.0,) * 4)


def batches(data, cut: Cut, *, thread: bool = False, augment: Augment = AUGMENT) -> Batches:
    return Batches(data, augment, cut, thread=thread)


def plain(batch: Batch):
    """Everything in a batch, comparable by ==."""
    rest = (batch.count_global, batch.step, batch.shards, batch.num_shards, batch.all_busy)
    return (batch.images.tolist(), batch.labels.tolist(), batch.indices.tolist(), *rest)


def steps_of(data, cut: Cut, first: int, last: int, **how) -> list[list[tuple]]:
    return [[plain(batch) for batch in step] for step in batches(data, cut, **how).steps(first, last)]


@st.composite
def cuts(draw, most_images: int = 60) -> Cut:
    images = draw(st.integers(1, most_images))
    batch = draw(st.integers(1, 20))
    shards = draw(st.integers(1, batch))
    shuffle = draw(st.sampled_from([None, Shuffle(), Shuffle(block=3, blocks=2)]))
    seed, replicas = draw(st.integers(0, 5)), draw(st.integers(1, shards))
    return Cut(Span(images, batch), shards, seed=seed, num_replicas=replicas, shuffle=shuffle)


@given(cut=cuts(), step=st.integers(0, 9))
def test_shards_one_by_one_are_the_step(cut, step):
    """In any order, from whoever's Batches."""
    data, alone = numbered(cut.span.images_per_epoch), replace(cut, replica=0, num_replicas=1)
    one_by_one = [batches(data, cut).shard(step, shard) for shard in reversed(range(cut.shards))]
    (together,) = steps_of(data, alone, step, step + 1)
    found = [plain(batch)[:6] for batch in reversed(one_by_one) if batch is not None]
    assert found == [batch[:6] for batch in together]


@given(cut=cuts(), epoch=st.integers(0, 3))
def test_an_epoch_over_all_replicas_is_the_order_of_the_epoch(cut, epoch):
    span = cut.span
    data = numbered(span.images_per_epoch)
    seen: list[int] = []
    for step in range(epoch * span.steps_per_epoch, (epoch + 1) * span.steps_per_epoch):
        of_step = []
        for replica in range(cut.num_replicas):
            for batch in batches(data, replace(cut, replica=replica)).prepare(step):
                assert batch.images.dtype == torch.uint8 and batch.labels.dtype == torch.int64
                assert batch.images.shape == (len(batch.labels), 4, 3, 3)
                assert batch.labels.tolist() == data.labels[batch.indices.numpy()].tolist()
                assert batch.step == step and batch.count_global == cut.count(step)
                assert len(batch.shards) == 1 and batch.shards[0][1] == len(batch.labels) > 0
                of_step.append(batch)
        shards = [batch.shards[0] for batch in of_step]
        bounds = shard_bounds(cut.count(step), cut.shards)
        assert shards == [(n, high - low) for n, (low, high) in enumerate(bounds) if high > low]
        assert all(batch.num_shards == len(shards) for batch in of_step)
        seen += [index for batch in of_step for index in batch.indices.tolist()]
    assert seen == order(span.images_per_epoch, cut.seed, epoch, cut.shuffle).tolist()


@given(cut=cuts())
def test_shards_are_the_same_under_any_number_of_replicas(cut):
    data, last = numbered(cut.span.images_per_epoch), 2 * cut.span.steps_per_epoch
    one = steps_of(data, replace(cut, num_replicas=1), 0, last)
    many = [steps_of(data, replace(cut, replica=replica), 0, last) for replica in range(cut.num_replicas)]
    joined = [[batch for replica in many for batch in replica[step]] for step in range(last)]
    # all_busy, the last entry, is about the replicas and no mathematics hangs on it.
    assert [[batch[:-1] for batch in step] for step in joined] == [[batch[:-1] for batch in step] for step in one]


@given(cut=cuts(), merged=st.booleans(), data=st.data())
def test_a_resume_at_any_step_continues_the_iteration(cut, merged, data):
    cut = replace(cut, merged=merged, replica=data.draw(st.integers(0, cut.num_replicas - 1)))
    source, last = numbered(cut.span.images_per_epoch), 3 * cut.span.steps_per_epoch
    first = data.draw(st.integers(0, last))
    assert steps_of(source, cut, first, last) == steps_of(source, cut, 0, last)[first:]


@given(cut=cuts())
def test_merged_is_one_batch_of_the_same_shards_for_every_replica(cut):
    data = numbered(cut.span.images_per_epoch)
    for replica in range(cut.num_replicas):
        own = replace(cut, replica=replica)
        for step in range(2 * cut.span.steps_per_epoch):
            apart = batches(data, own).prepare(step)
            (merged,) = batches(data, replace(own, merged=True)).prepare(step)
            assert merged.shards == tuple(shard for batch in apart for shard in batch.shards)
            assert merged.all_busy  # all take part, if only in the collectives
            assert merged.count_global == cut.count(step) and merged.step == step
            for field in ("images", "labels", "indices"):
                pieces = [getattr(batch, field) for batch in apart]
                whole = getattr(merged, field)
                assert torch.equal(whole, torch.cat([whole[:0], *pieces]))
            assert merged.images.shape[1:] == (4, 3, 3)


def test_a_batch_smaller_than_its_shards_leaves_replicas_without_images():
    data, cut = numbered(10), Cut(Span(10, 8), shards=4, seed=0, num_replicas=4)
    full = [batches(data, replace(cut, replica=replica)).prepare(0) for replica in range(4)]
    short = [batches(data, replace(cut, replica=replica)).prepare(1) for replica in range(4)]
    assert [[batch.all_busy for batch in each] for each in full] == [[True]] * 4
    assert [[batch.shards for batch in each] for each in short] == [[((0, 1),)], [((1, 1),)], [], []]
    assert not any(batch.all_busy for each in short for batch in each)
    assert all(batch.num_shards == 2 for each in short for batch in each)


def test_merged_a_replica_without_images_has_an_empty_batch():
    cut = Cut(Span(10, 8), shards=4, seed=0, replica=3, num_replicas=4, merged=True)
    (empty,) = batches(numbered(10), cut).prepare(1)
    assert (empty.shards, empty.first_shard, empty.all_busy, empty.count_global) == ((), -1, True, 2)
    assert empty.images.shape == (0, 4, 3, 3) and empty.images.dtype == torch.uint8
    assert empty.labels.dtype == empty.indices.dtype == torch.int64


@given(images=st.integers(1, 30), batch=st.integers(1, 12), shards=st.integers(1, 12), replicas=st.integers(1, 12))
def test_all_busy_tells_whether_every_replica_has_a_batch(images, batch, shards, replicas):
    data = numbered(images)
    cut = Cut(Span(images, batch), min(shards, batch), seed=0, num_replicas=replicas)
    for step in range(cut.span.steps_per_epoch):
        taken = [batches(data, replace(cut, replica=replica)).prepare(step) for replica in range(replicas)]
        assert {each.all_busy for one in taken for each in one} == {all(taken)}


def test_drop_last_leaves_out_other_samples_in_each_epoch():
    data, cut = numbered(11), Cut(Span(8, 4), shards=2, seed=0)
    seen = [step[field][2] for step in steps_of(data, cut, 0, 2 * 20) for field in range(2)]
    assert all(len(indices) == 2 for indices in seen)
    assert {index for indices in seen for index in indices} == set(range(11))


# The thread


@given(cut=cuts(), merged=st.booleans(), block=st.sampled_from([1, 300, 1000, 1 << 19]))
@settings(max_examples=40)
def test_neither_the_thread_nor_preparing_many_steps_together_changes_anything(cut, merged, block):
    cut, last = replace(cut, merged=merged), 2 * cut.span.steps_per_epoch
    data = numbered(cut.span.images_per_epoch)
    one_by_one = [[plain(batch) for batch in batches(data, cut).prepare(step)] for step in range(last)]
    with patch.object(module, "_BLOCK_BYTES", block):
        for thread in (False, True):
            assert steps_of(data, cut, 0, last, thread=thread) == one_by_one


class Broken(Held):
    """Images that cannot be read any more after so many calls."""

    def __init__(self, data: Held, calls: int) -> None:
        self.__dict__.update(vars(data))
        self.calls = calls

    def pixels(self, indices):
        self.calls -= 1
        if self.calls < 0:
            raise OSError("the disk is gone")
        return super().pixels(indices)


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "batches"]


@STEP_BY_STEP
@pytest.mark.parametrize("thread", [False, True])
def test_a_fault_of_the_source_comes_to_the_caller_after_the_good_steps(thread):
    cut = Cut(Span(40, 4), shards=2, seed=0)
    steps = batches(Broken(numbered(40), 5), cut, thread=thread).steps(0, 10)
    good = []
    with pytest.raises(OSError, match="the disk is gone"):
        for step in steps:
            good.append([plain(batch) for batch in step])
    assert good == steps_of(numbered(40), cut, 0, 5)
    assert not running()


@STEP_BY_STEP
@pytest.mark.parametrize("taken", [0, 1, 7])
def test_closing_early_leaves_no_thread(taken):
    data = numbered(40)
    steps: Any = batches(data, Cut(Span(40, 1), shards=1, seed=0), thread=True).steps(0, 4000)
    for _ in range(taken):
        next(steps)
    assert bool(running()) == (taken > 0)
    steps.close()
    assert not running()


@STEP_BY_STEP
def test_closing_while_the_source_is_at_work_waits_for_it():
    class Slow(Broken):
        def pixels(self, indices):
            time.sleep(0.1)
            return super().pixels(indices)

    steps: Any = batches(Slow(numbered(8), 100), Cut(Span(8, 1), shards=1, seed=0), thread=True).steps(0, 100)
    next(steps)
    steps.close()
    assert not running()


@STEP_BY_STEP
def test_waiting_is_measured_only_where_the_caller_waits():
    class Slow(Broken):
        def pixels(self, indices):
            time.sleep(0.1)
            return super().pixels(indices)

    cut = Cut(Span(8, 2), shards=1, seed=0)
    here = batches(Slow(numbered(8), 100), cut, thread=False)
    list(here.steps(0, 3))
    assert here.waited_s >= 0.3
    ahead = batches(Slow(numbered(8), 100), cut, thread=True)
    steps = ahead.steps(0, 3)
    next(steps)
    first = ahead.waited_s
    assert first > 0
    while running():  # a long step, in which the others are prepared
        time.sleep(0.02)
    list(steps)
    assert ahead.waited_s == first


# Validation


@given(images=st.integers(1, 60), eval_batch=st.integers(1, 25), replicas=st.integers(1, 12))
def test_chunks_are_the_same_under_any_number_of_replicas(images, eval_batch, replicas):
    data, augment = numbered(images), Augment(crop=2)
    chunks = [
        chunk
        for replica in range(replicas)
        for chunk in eval_chunks(data, augment, eval_batch, replica=replica, num_replicas=replicas)
    ]
    assert [number for number, _ in chunks] == list(range(-(-images // eval_batch)))
    assert [index for _, batch in chunks for index in batch.indices.tolist()] == list(range(images))
    for _, batch in chunks:
        assert batch.count_global == len(batch.indices) <= eval_batch
        assert batch.labels.tolist() == data.labels[batch.indices.numpy()].tolist()
        assert np.array_equal(batch.images.numpy(), data.images[batch.indices.numpy()][:, :, 1:3, 1:3])
