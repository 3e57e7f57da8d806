"""Upload: what is used has arrived, wherever it is used; a CPU is sent nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from late import Late
from shoal.base.duration import Span
from shoal.data.augment import Augment
from shoal.data.batches import Batch, Batches, Cut, eval_chunks
from shoal.data.source import Held
from shoal.data.upload import Upload

CPU = torch.device("cpu")
AUGMENT = Augment(pad=1, mirror=True)
CUT = Cut(Span(30, 8), 3, seed=4)


def held() -> Held:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 1, 6, 6), dtype=np.uint8)
    return Held(pixels, np.arange(30) % 5, tuple("abcde"), mean=(0.0,), std=(1.0,))


def same(one: Batch, other: Batch) -> bool:
    tensors = all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("images", "labels", "indices"))
    return tensors and (one.step, one.shards, one.count_global) == (other.step, other.shards, other.count_global)


def test_a_cpu_is_sent_nothing():
    tensors = (torch.arange(3), torch.zeros(2))
    there, sent = Upload(CPU)(tensors)
    assert sent is None
    assert all(a is b for a, b in zip(there, tensors, strict=True))


@pytest.mark.parametrize("thread", [True, False])
def test_batches_of_steps_arrive_when_they_are_wanted(thread):
    upload = Late()
    late = list(Batches(held(), AUGMENT, CUT, thread=thread, upload=upload).steps(0, 8))
    assert upload.sent
    assert not upload.arrived
    for coming, expected in zip(late, Batches(held(), AUGMENT, CUT).steps(0, 8), strict=True):
        for batch, other in zip(coming, expected, strict=True):
            assert same(batch.to(CPU), other)
    assert upload.arrived == upload.sent


def test_one_step_and_one_shard_arrive_too():
    late, now = Batches(held(), AUGMENT, CUT, upload=Late()), Batches(held(), AUGMENT, CUT)
    assert all(same(a.to(CPU), b) for a, b in zip(late.prepare(2), now.prepare(2), strict=True))
    one, other = late.shard(1, 2), now.shard(1, 2)
    assert one is not None
    assert other is not None
    assert not same(one, other)
    one.arrive()
    one.arrive()
    assert same(one, other)


def test_a_piece_of_a_batch_arrives_with_it():
    (batch,) = Batches(held(), AUGMENT, replace(CUT, merged=True), upload=Late()).prepare(0)
    piece = replace(batch, images=batch.images[:3], labels=batch.labels[:3], indices=batch.indices[:3])
    expected = Batches(held(), AUGMENT, CUT).prepare(0)[0]
    for name in ("images", "labels", "indices"):
        assert torch.equal(getattr(piece.to(CPU), name), getattr(expected, name))


def test_validation_chunks_arrive():
    late = list(eval_chunks(held(), AUGMENT, 7, upload=Late()))
    for (number, batch), (expected, other) in zip(late, eval_chunks(held(), AUGMENT, 7), strict=True):
        assert number == expected
        assert same(batch.to(CPU), other)
