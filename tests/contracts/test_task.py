"""What every task must do, the one that is added tomorrow too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from a_part import assert_torch_free, minimal, parts

from shoal.data.batches import Batch
from shoal.data.source import NO_IMAGE, NO_LABEL
from shoal.step.distilling import Said, Taught, soft
from shoal.step.task import TwoPartTask
from shoal.step.tasks.distill import Distill

pytestmark = pytest.mark.parametrize("name", parts("tasks"))
SHARDS = ((3, 4), (4, 3), (5, 3))


@pytest.fixture
def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2 * 4 * 4, 6)).double()


def ready(name: str) -> Any:
    """The part; one that has a teacher, with a teacher that says something else of each image."""
    task = minimal("tasks", name)
    if not isinstance(task, Distill):
        return task
    return Taught.by(task, lambda batch: Said(soft(batch.images.double().flatten(1)[:, :6] / 64, task.softness)))


def inputs_and_batch() -> tuple[torch.Tensor, Batch]:
    stream = torch.Generator().manual_seed(1)
    count = sum(size for _, size in SHARDS)
    images = torch.randint(0, 256, (count, 2, 4, 4), generator=stream, dtype=torch.uint8)
    labels = torch.randint(0, 6, (count,), generator=stream)
    labels[2], labels[5] = NO_LABEL, NO_IMAGE
    return images.double() / 128 - 1, Batch(images, labels, torch.arange(count), count, step=7, shards=SHARDS)


def of_shard(batch: Batch, inputs: torch.Tensor, n: int) -> tuple[torch.Tensor, Batch]:
    low = sum(size for _, size in SHARDS[:n])
    piece = slice(low, low + SHARDS[n][1])
    held = Batch(
        batch.images[piece], batch.labels[piece], batch.indices[piece], batch.count_global, batch.step, (SHARDS[n],)
    )
    return inputs[piece], held


def test_a_loss_is_a_sum_that_can_be_descended(name, net):
    inputs, batch = inputs_and_batch()
    loss, logits = ready(name).loss(net, inputs, batch, 0)
    assert loss.shape == () and torch.isfinite(loss) and loss > 0
    assert logits.shape == (len(inputs), 6)
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in net.parameters())


def test_shards_add_up_to_the_batch(name, net):
    task, (inputs, batch) = ready(name), inputs_and_batch()
    loss, logits = task.loss(net, inputs, batch, 0)
    apart = [task.loss(net, *of_shard(batch, inputs, n), 0) for n in range(len(SHARDS))]
    torch.testing.assert_close(torch.stack([loss for loss, _ in apart]).sum(), loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.cat([logits for _, logits in apart]), logits, rtol=1e-12, atol=1e-14)


def test_the_same_seed_step_and_shard_give_the_same_bits(name, net):
    task, (inputs, batch) = ready(name), inputs_and_batch()
    losses = []
    for state in (1, 2):
        torch.manual_seed(state)  # nobody's business but the shard's
        losses.append(task.loss(net, inputs.clone(), batch, 0)[0])
    assert torch.equal(*losses)


def test_a_worker_without_images_takes_part_with_nothing(name, net):
    inputs, batch = inputs_and_batch()
    empty = Batch(batch.images[:0], batch.labels[:0], batch.indices[:0], batch.count_global, batch.step, ())
    loss, logits = ready(name).loss(net, inputs[:0], empty, 0)
    loss.backward()
    assert float(loss.detach()) == 0 and logits.shape == (0, 6)
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in net.parameters())


def test_a_loss_in_two_parts_is_told_in_two(name, net):
    task, (inputs, batch) = ready(name), inputs_and_batch()
    if not isinstance(task, TwoPartTask):
        pytest.skip(f"{name} learns from labels alone")
    loss, logits = task.loss(net, inputs, batch, 0)
    labels = task.label_loss(logits, batch.labels)
    unlabelled = torch.full_like(batch.labels, NO_LABEL).where(batch.labels != NO_IMAGE, NO_IMAGE)
    rest, _ = task.loss(net, inputs, replace(batch, labels=unlabelled), 0)
    assert float(labels.detach()) > 0 and float(task.label_loss(logits, unlabelled).detach()) == 0
    assert task.without_labels(*map(float, (loss.detach(), labels.detach()))) == pytest.approx(
        task.without_labels(float(rest.detach()), 0.0)
    )


def test_importing_it_does_not_import_torch(name):
    assert_torch_free("tasks", name)
