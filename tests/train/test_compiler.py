"""torch's compiler stays out of a process until it is asked for, and is wholly there then."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import os, sys, threading, torch
import torch.distributed as dist
from shoal.train import compiler
real = lambda: "torch._dynamo.eval_frame" in sys.modules
def step(kind):
    weights = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([weights], lr=0.1)
    weights.sum().backward()
    optimizer.step(); optimizer.zero_grad(); optimizer.load_state_dict(optimizer.state_dict())
    return weights
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
assert not real()
compiler.leave_out()
"""


@pytest.mark.parametrize(
    "then",
    [
        "step(torch.optim.SGD); step(torch.optim.AdamW); import inspect; inspect.getmodule(step)\n"
        "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))(torch.ones(1, 2)).sum().backward()\n"
        "assert not real()",
        "f = torch.compile(lambda x: x.sin() + 1, backend='eager'); x = torch.ones(2); step(torch.optim.SGD)\n"
        "assert (f(x) == x.sin() + 1).all() and real() and torch._dynamo is sys.modules['torch._dynamo']\n"
        "step(torch.optim.SGD)",
        "found = []\ndef ask(): found.append(torch._dynamo.optimize)\n"
        "threads = [threading.Thread(target=ask) for _ in range(4)]\n"
        "[one.start() for one in threads]; [one.join() for one in threads]\nassert len(found) == 4 and real()\n"
        "import torch._dynamo.utils; compiler.leave_out(); assert torch._dynamo.utils.same and torch._dynamo.reset",
    ],
    ids=["optimizers and DDP do without it", "it compiles", "from several threads"],
)
def test_it_comes_when_it_is_asked_for(then: str) -> None:
    done = subprocess.run([sys.executable, "-c", BEGIN + then], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
