"""Why the model of each node gives a different validation accuracy: shown happening, and not happening.

The handwritten digits on two workers, by torch's DistributedDataParallel and DistributedSampler as most scripts use
them, and by Shoal. docs/nodes.md explains what is printed.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pairs import finish, machine, verdict
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from shoal.recipe.load import load
from shoal.train.setup import make_model, open_data

EPOCHS, BATCH = 2, 32
WORKERS = 2


def normed(split: Any) -> TensorDataset:
    images = torch.from_numpy(split.pixels(np.arange(len(split.labels)))).float()
    return TensorDataset((images - split.mean[0]) / split.std[0], torch.from_numpy(split.labels))


@torch.inference_mode()
def correct(model: nn.Module, images: DataLoader) -> tuple[int, int]:
    model.eval()
    hits = [(model(x).argmax(1) == y) for x, y in images]
    model.train()
    return int(torch.cat(hits).sum()), sum(map(len, hits))


def usual(rank: int, port: int, synchronised: bool, results: str) -> None:
    """One node of the usual script."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORKERS)
    torch.manual_seed(1)
    recipe = load("digits").recipe
    data = open_data(recipe)
    train, val = normed(data.train), normed(data.val)
    net = make_model(recipe, data.classes, 1, pretrained=False).module
    net.load_state_dict({name: tensor.clone() for name, tensor in _equal(net).items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames the option
        model = DistributedDataParallel(net, broadcast_buffers=synchronised)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    sampler = DistributedSampler(train, seed=1)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(train, BATCH, sampler=sampler):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    whole = correct(net, DataLoader(val, 256))
    piece = correct(net, DataLoader(val, 256, sampler=DistributedSampler(val, shuffle=False)))
    weights = torch.cat([tensor.flatten() for tensor in net.parameters()])
    buffers = torch.cat([tensor.double().flatten() for tensor in net.buffers()])
    torch.save((whole, piece, weights, buffers), f"{results}/{rank}")
    dist.destroy_process_group()


def _equal(net: nn.Module) -> dict[str, torch.Tensor]:
    """Rank 0's first weights."""
    state = net.state_dict()
    for tensor in state.values():
        dist.broadcast(tensor, 0)
    return state


def by_usual_means(synchronised: bool) -> list[tuple]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(usual, (port, synchronised, folder), WORKERS)  # type: ignore[attr-defined]
        return [torch.load(f"{folder}/{rank}", weights_only=True) for rank in range(WORKERS)]


def shoal(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "shoal", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def by_shoal() -> list[tuple[str, int, int]]:
    """(how, correct, of how many) for one model, validated by one, two and three workers."""
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        said = shoal("train", "digits", f"length={EPOCHS}ep", "-n", str(WORKERS), "--run", run)
        found = [("as training said", *_counts(said))]
        for n in (1, 2, 3):
            found.append((f"validated by {n}", *_counts(shoal("eval", run, "-n", str(n)))))
        return found


def _counts(said: str) -> tuple[int, int]:
    match = re.search(r"^top-1 .*\((\d+) correct, n = (\d+)", said, re.MULTILINE)
    assert match, said
    return int(match[1]), int(match[2])


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(machine())
    for synchronised in (False, True):
        nodes = by_usual_means(synchronised)
        print(f"\nDistributedDataParallel, broadcast_buffers={synchronised}")
        same = [torch.equal(node[2], nodes[0][2]) for node in nodes]
        apart = max(float((node[3] - nodes[0][3]).abs().max()) for node in nodes)
        print(f"  weights equal on all nodes: {all(same)}; BatchNorm's statistics differ by up to {apart:.3g}")
        for rank, (whole, _, _, _) in enumerate(nodes):
            print(f"  node {rank} validates all images: {whole[0]} of {whole[1]} correct, {whole[0] / whole[1]:.4f}")
        right, count = (sum(column) for column in zip(*(piece for _, piece, _, _ in nodes), strict=True))
        print(f"  each node its piece, counts added: {right} of {count} correct, {right / count:.4f}")
    print("\nShoal")
    found = by_shoal()
    for how, right, count in found:
        print(f"  {how}: {right} of {count} correct, {right / count:.4f}")
    verdict(
        "different results of one model in Shoal",
        len({counts[1:] for counts in found}),
        "1",
        len({c[1:] for c in found}) == 1,
    )
    finish()


if __name__ == "__main__":
    main()
