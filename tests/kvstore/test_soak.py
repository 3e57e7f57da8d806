"""Workers and a server are killed at random while they train: in the end every position counts exactly once.

SHOAL_SOAK: how long, as in 20s or 5min; `make soak` takes 20 minutes, CI 5; the suite 10 seconds.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from a_server import ServerProcess
from servers import SECRET

from shoal.cli.seconds import Seconds

SOAK_S = Seconds(1).convert(os.environ.get("SHOAL_SOAK", "10s"), None, None) or 0.0
WORKERS = 3
SIZE = 20_000
LIMIT = 1 << 40

WORKER = """
import os, sys, time
import torch
from shoal.kvstore.client import Client
from shoal.kvstore.layout import Layout, Limits, Terms
from shoal.kvstore.updater import describe
address, rank, count, size, secret, stop = sys.argv[1:]
limits, memory = Limits(90, 90, 10, 90), rank != "0"
client = Client([address], int(rank), int(count), secret.encode(), limits=limits, shared_memory=memory)
tensors, flat = [torch.zeros(int(size))], torch.zeros(int(size))
sgd = describe(torch.optim.SGD(tensors, lr=1.0), tensors)
client.init(flat, Layout.of([("a", tensors[0])]), sgd, Terms(mode="async"))
step = 0
while not os.path.exists(stop):
    position = client.take(1 << 40)
    values = torch.zeros(int(size))
    values[0] = 1.0                  # how many pushes count
    values[1:] = position % 7 + 1    # which ones, and whether whole
    client.push(0, values)
    client.commit(step, lr=1.0)
    client.pull(flat)
    assert (flat[1:] == flat[1]).all(), "torn"
    step += 1
    time.sleep(0.005)
print("done", flush=True)
client.close()
"""


@pytest.mark.slow
@pytest.mark.timeout(SOAK_S + 240)
def test_every_position_counts_once(tmp_path: Path):
    draw = random.Random(5)
    args = ("--snapshot", str(tmp_path / "snapshot"), "--snapshot-s", "0.3")
    server = ServerProcess(tmp_path, WORKERS + 1, *args)
    from shoal.kvstore.client import Client
    from shoal.kvstore.layout import Layout, Limits, Terms
    from shoal.kvstore.updater import describe

    stop = tmp_path / "stop"

    def worker(rank: int) -> subprocess.Popen:
        command = [
            sys.executable,
            "-c",
            WORKER,
            server.address,
            str(rank),
            str(WORKERS + 1),
            str(SIZE),
            SECRET.decode(),
        ]
        return subprocess.Popen([*command, str(stop)], stdout=subprocess.PIPE, text=True)

    workers = [worker(rank) for rank in range(WORKERS)]
    memory: list[float] = []
    try:
        watcher = Client(
            [server.address], WORKERS, WORKERS + 1, SECRET, limits=Limits(90, 90, 10, 90), tell=lambda text: None
        )
        tensors, flat = [torch.zeros(SIZE)], torch.zeros(SIZE)
        description = describe(torch.optim.SGD(tensors, lr=1.0), tensors)
        watcher.init(flat, Layout.of([("a", tensors[0])]), description, Terms(mode="async"))
        kills, until = 0, time.monotonic() + SOAK_S
        while time.monotonic() < until or kills < 5:
            time.sleep(draw.uniform(2, 4))
            if draw.random() < 0.25:
                server.kill()
                server = ServerProcess(tmp_path, WORKERS + 1, *args, address=server.address)
                memory = []
            else:
                memory.append(server.rss_mb())
                rank = draw.randrange(WORKERS)
                workers[rank].send_signal(signal.SIGKILL)
                workers[rank].wait()
                workers[rank] = worker(rank)
            kills += 1
        stop.touch()
        for process in workers:
            assert process.wait(90) == 0
        time.sleep(1.5)  # what the dead had taken is given back
        # The watcher takes what nobody finished, then new ones; one that equals the count has no hole below it.
        last = -1
        for step in range(200):
            watcher.pull(flat)
            count, position = -round(flat[0].item()), watcher.take(LIMIT)
            values = torch.zeros(SIZE)
            values[0], values[1:] = 1.0, position % 7 + 1
            watcher.push(0, values)
            watcher.commit(step, lr=1.0)
            last = max(last, position)
            if position == count:
                break
        watcher.pull(flat)
        watcher.close()
        assert server.process.wait(10) == 0
    finally:
        server.__exit__()
        for process in workers:
            process.kill()
            process.wait()
    count = -round(flat[0].item())
    assert count == last + 1, f"{count} pushes for {last + 1} positions after {kills} kills"
    assert -round(flat[1].item()) == sum(position % 7 + 1 for position in range(last + 1))
    assert (flat[1:] == flat[1]).all()
    if len(memory) > 3:
        assert memory[-1] - memory[2] < 5.0 + 0.2 * len(memory)
