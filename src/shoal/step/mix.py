"""Mixup and cutmix inside each shard of a batch, by random numbers of (seed, step, shard)."""

from __future__ import annotations

import numpy as np
import torch

from shoal.data.batches import Batch
from shoal.data.order import key

_STREAM = 7


def mixed(
    inputs: torch.Tensor, batch: Batch, seed: int, *, mixup: float, cutmix: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """inputs [B, C, H, W] -> (mixed inputs, partner int64 [B], own share [B] of each label).

    One share per shard, of Beta(alpha, alpha); the partner of an image is a random one of its shard.
    """
    result = inputs.clone()
    partner = torch.empty(len(inputs), dtype=torch.int64)
    share = torch.empty(len(inputs), dtype=inputs.dtype)
    low = 0
    for shard, size in batch.shards:
        high = low + size
        rng = np.random.Generator(np.random.Philox(key(seed, batch.step, shard, _STREAM)))
        partner[low:high] = low + torch.from_numpy(rng.permutation(size))
        cut = cutmix > 0 and (mixup == 0 or rng.random() < 0.5)
        alpha = cutmix if cut else mixup
        own = float(rng.beta(alpha, alpha))
        others = inputs[partner[low:high].to(inputs.device)]
        if cut:
            own = _paste(result[low:high], others, own, rng)
        else:
            result[low:high] = own * inputs[low:high] + (1 - own) * others
        share[low:high] = own
        low = high
    return result, partner.to(inputs.device), share.to(inputs.device)


def _paste(into: torch.Tensor, others: torch.Tensor, own: float, rng: np.random.Generator) -> float:
    """Puts one rectangle of (1 - own) of the area into all images; returns the share that really stayed."""
    height, width = into.shape[2:]
    side = (1 - own) ** 0.5
    centre_y, centre_x = rng.integers(height), rng.integers(width)
    half_y, half_x = int(height * side) // 2, int(width * side) // 2
    top, bottom = max(centre_y - half_y, 0), min(centre_y + half_y, height)
    left, right = max(centre_x - half_x, 0), min(centre_x + half_x, width)
    into[:, :, top:bottom, left:right] = others[:, :, top:bottom, left:right]
    return 1 - (bottom - top) * (right - left) / (height * width)
