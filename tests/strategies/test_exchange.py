"""What DistributedDataParallel is asked to do: when gradients leave."""

from __future__ import annotations

import pytest
import torch

from gangs import GangPool
from shoal.data.batches import Batch
from shoal.step.gang import Gang
from shoal.strategies.replicated.buffers import Buffers
from shoal.strategies.replicated.exchange import Bucketed

IMAGES = 2


def sizes_of_buckets(gang: Gang, bucket_mb: float | None) -> list[int]:
    """Bytes of each bucket of the third step, of a net of 16 KiB, 512 KiB and 1 MiB."""
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 64, bias=False),
        torch.nn.Linear(64, 2048, bias=False),
        torch.nn.Linear(2048, 128, bias=False),
    )
    exchange = Bucketed(gang, bucket_mb=bucket_mb, unused_parameters=False)
    forward = exchange.attach(net, Buffers(net, average=False))
    nothing = torch.zeros(IMAGES, dtype=torch.int64)
    for step in range(3):
        batch = Batch(torch.zeros(IMAGES, 1, 8, 8, dtype=torch.uint8), nothing, nothing, 2 * IMAGES, step)
        exchange.before_forward(batch, last=True)
        loss = forward(torch.ones(IMAGES, 64)).sum()
        exchange.after_forward(batch, True, 0)
        loss.backward()
        exchange.finish(0)
    return [flat.numel() * flat.element_size() for flat in exchange.gradients]


@pytest.mark.parametrize(
    ("bucket_mb", "sizes"),
    [
        (None, [1 << 20, (1 << 19) + (1 << 14)]),
        (25.0, [(1 << 20) + (1 << 19) + (1 << 14)]),
        (0.5, [1 << 20, 1 << 19, 1 << 14]),
    ],
)
def test_the_first_gradients_leave_while_others_are_computed(
    gang_pool: GangPool, bucket_mb: float | None, sizes: list[int]
) -> None:
    """Unless a size is said, that of the first bucket is small: with torch's 25 MiB a small net had one bucket, and
    nothing of its exchange was hidden by the backward pass."""
    assert gang_pool.run(sizes_of_buckets, 2, bucket_mb) == [sizes, sizes]
