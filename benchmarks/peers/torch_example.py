"""PyTorch's ImageNet example as a pattern: DistributedDataParallel, DataLoader, torchvision's transforms, a plain loop.
Images/s of this worker, as JSON.

    python torch_example.py BATCH STEPS      under a launcher that sets RANK, WORLD_SIZE, MASTER_*; or alone
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from cifar_like import Made, net, optimizer_of
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

WARM = 5


def main() -> None:
    batch, steps = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    if not alone:
        dist.init_process_group("gloo")
    images = Made((WARM + steps) * batch * (1 if alone else dist.get_world_size()))
    sampler = None if alone else DistributedSampler(images)
    loader = DataLoader(images, batch, shuffle=alone, sampler=sampler, num_workers=1, drop_last=True)
    model = net() if alone else DistributedDataParallel(net())
    optimizer = optimizer_of(model)
    model.train()
    began = time.perf_counter()
    for step, (x, y) in enumerate(loader):
        if step == WARM:
            began = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()  # the example's meter reads it in every step
    print(json.dumps({"images_per_s": steps * batch / (time.perf_counter() - began)}), flush=True)


if __name__ == "__main__":
    main()
