"""What every task must do, the one that is added tomorrow too."""

from __future__ import annotations

import pytest
import torch
from a_part import assert_torch_free, minimal, parts

from shoal.data.batches import Batch

pytestmark = pytest.mark.parametrize("name", parts("tasks"))
SHARDS = ((3, 4), (4, 3), (5, 3))


@pytest.fixture
def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2 * 4 * 4, 6)).double()


def inputs_and_batch() -> tuple[torch.Tensor, Batch]:
    stream = torch.Generator().manual_seed(1)
    count = sum(size for _, size in SHARDS)
    images = torch.randint(0, 256, (count, 2, 4, 4), generator=stream, dtype=torch.uint8)
    labels = torch.randint(0, 6, (count,), generator=stream)
    labels[2] = -1
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
    loss, logits = minimal("tasks", name).loss(net, inputs, batch, 0)
    assert loss.shape == () and torch.isfinite(loss) and loss > 0
    assert logits.shape == (len(inputs), 6)
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in net.parameters())


def test_shards_add_up_to_the_batch(name, net):
    task, (inputs, batch) = minimal("tasks", name), inputs_and_batch()
    loss, logits = task.loss(net, inputs, batch, 0)
    apart = [task.loss(net, *of_shard(batch, inputs, n), 0) for n in range(len(SHARDS))]
    torch.testing.assert_close(torch.stack([loss for loss, _ in apart]).sum(), loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.cat([logits for _, logits in apart]), logits, rtol=1e-12, atol=1e-14)


def test_the_same_seed_step_and_shard_give_the_same_bits(name, net):
    task, (inputs, batch) = minimal("tasks", name), inputs_and_batch()
    losses = []
    for state in (1, 2):
        torch.manual_seed(state)  # nobody's business but the shard's
        losses.append(task.loss(net, inputs.clone(), batch, 0)[0])
    assert torch.equal(*losses)


def test_a_worker_without_images_takes_part_with_nothing(name, net):
    inputs, batch = inputs_and_batch()
    empty = Batch(batch.images[:0], batch.labels[:0], batch.indices[:0], batch.count_global, batch.step, ())
    loss, logits = minimal("tasks", name).loss(net, inputs[:0], empty, 0)
    loss.backward()
    assert float(loss.detach()) == 0 and logits.shape == (0, 6)
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in net.parameters())


def test_importing_it_does_not_import_torch(name):
    assert_torch_free("tasks", name)
