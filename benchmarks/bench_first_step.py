"""Time to the first training step of two workers, against a script that imports torch and takes one step."""

from __future__ import annotations

import sys

from pairs import compare, finish, machine, training, verdict, whole_process

PAIRS = 7
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
    finish()


if __name__ == "__main__":
    main()
