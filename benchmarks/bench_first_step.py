"""Time to the first training step of two workers, against a script that imports torch and takes one step; and what the
agent, which starts before the workers do, has in it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pairs import compare, finish, machine, training, verdict, whole_process

PAIRS, STARTS = 7, 15
SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3), torch.nn.Flatten(), torch.nn.Linear(576, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.nn.functional.cross_entropy(model(torch.randn(64, 1, 8, 8)), torch.zeros(64, dtype=torch.long)).backward()
optimizer.step()
"""


def first_step() -> float:
    """Seconds from the start of the command to the end of its first step, as the run itself tells."""
    return training("digits", "-n", "2", "length=2st")["first_step_s"]


def first_word(argv: Sequence[str]) -> tuple[float, float]:
    """Seconds until a program says its first line, and of processor time until then; a line of JSON may name another
    process of it."""
    began = time.perf_counter()
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        said = json.loads(process.stdout.readline())
        seconds = time.perf_counter() - began
        used = sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in {process.pid, said["pid"]})
        process.stdin.close()
        process.stdout.read()
    return seconds, used / 1e9


def agent() -> None:
    """Guardian and agent, against an interpreter that only says a word."""
    bare = "import os, sys; print('{\"pid\":', os.getpid(), '}', flush=True); sys.stdin.read()"
    ours, theirs = (sys.executable, "-m", "shoal", "agent"), (sys.executable, "-c", bare)
    pairs = [(first_word(ours), first_word(theirs)) for _ in range(STARTS)]
    for index, what in enumerate(("start of the agent, s", "start of the agent, s of processor time")):
        more = sorted(ours[index] - theirs[index] for ours, theirs in pairs)
        middle = statistics.median(more)
        print(f"{what}: {middle:.3f} more than a bare interpreter, {more[0]:.3f} to {more[-1]:.3f} ({STARTS} pairs)")
        verdict(what, middle, "< 0.1", middle < 0.1)


def main() -> None:
    print(machine())
    base = [sys.executable, "-c", SCRIPT]
    first_step()
    whole_process(base)
    ours, theirs, ratio, low, high = compare(first_step, lambda: whole_process(base), PAIRS)
    print(
        f"first step of `shoal train digits -n 2`: {ours:.2f} s; script: {theirs:.2f} s (medians of {PAIRS} pairs); "
        f"ratio {ratio:.2f}, {low:.2f} to {high:.2f}"
    )
    verdict("time to the first step", ratio, "<= 1.3", ratio <= 1.3)
    agent()
    finish()


if __name__ == "__main__":
    main()
