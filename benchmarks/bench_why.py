"""Does `shoal why` find what is wrong? Trainings with a fault put in: the class and the worker it names, and whether
taking the fault away gives what it foretold. Faults are as long as so many steps take here without them: images are
made ahead of the steps that need them, so a sleep shorter than a step would be none.

    bench_why.py [--trials 20]      needs root and `tc` for the throttled link, which is left out without them
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from pairs import finish, machine, verdict

BASE = ("digits", "length=6ep", "eval_every=6ep", "save_every=6ep", "log_every=20st", "strategy.threads=1")
FAULTS = Path(__file__).parent / "faults"


class Fault(NamedTuple):
    """What is put in, and what `why` is to say."""

    name: str
    kinds: tuple[str, ...]
    rank: int | None
    fault: str = ""
    """KIND:RANK:STEPS: the time of so many steps, in each block of images, shard's pass or chunk of the validation."""
    overrides: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Overrides of the training without the fault."""
    throttled: str = ""


FAULTY = (
    Fault("slow source, worker 1", ("straggler",), 1, "input:1:2"),
    Fault("slow source, worker 0", ("straggler",), 0, "input:0:1.5"),
    Fault("busy forward, worker 1", ("straggler",), 1, "compute:1:0.5"),
    Fault("busy forward, worker 0", ("straggler",), 0, "compute:0:1"),
    Fault("slow disk, all workers", ("input",), None, "input:all:2"),
    Fault("slow validation", ("validation",), None, "validation:all:6", ("eval_every=20st",), ("eval_every=20st",)),
    Fault("tiny batch", ("small batch",), None, "", ("batch=4", "shards=2", "length=1ep"), ("length=1ep",)),
    Fault("throttled link", ("exchange",), None, throttled="30mbit"),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=20)
    options = parser.parse_args()
    print(machine())
    able = shutil.which("tc") and shutil.which("unshare") and os.geteuid() == 0
    faults = [fault for fault in FAULTY if able or not fault.throttled]
    if not able:
        print("the throttled link is left out: it needs root, unshare and tc")
    step_s = statistics.median(step() for _ in range(3))
    print(f"a step without a fault: {1000 * step_s:.1f} ms")
    right, errors, own = 0, [], []
    for trial in range(options.trials):
        fault = faults[trial % len(faults)]
        kind, _, steps = fault.fault.rpartition(":")
        put_in = f"{kind}:{float(steps) * step_s}" if kind else ""
        why, spent_s = train(fault.overrides, put_in, fault.throttled)
        without_s = train(fault.without)[1]
        first = why["brakes"][0] if why["brakes"] else {"kind": "none", "rank": None, "speed_up": 1.0}
        found = first["kind"] in fault.kinds and first["rank"] == fault.rank
        right += found
        measured = spent_s / without_s
        if found:
            errors.append(abs(first["speed_up"] / measured - 1))
        own.append(why["spent"]["own_s"] / spent_s)
        print(
            f"{'ok  ' if found else 'MISS'}  {fault.name:24} -> {first['kind']}, worker {first['rank']}; "
            f"foretold {first['speed_up']:.2f} x, measured {measured:.2f} x",
            flush=True,
        )
    goal = round(0.95 * options.trials)
    verdict(f"named rightly, of {options.trials}", right, f">= {goal}", right >= goal)
    error = statistics.median(errors)
    verdict(
        f"median error of what was foretold (n = {len(errors)}, worst {max(errors):.2f})",
        error,
        "<= 0.15",
        error <= 0.15,
    )
    share = statistics.median(own)
    verdict(f"share of the time for the instruments (worst {max(own):.4f})", share, "<= 0.01", share <= 0.01)
    finish()


def step() -> float:
    """Seconds of a step when nothing is wrong."""
    spent = train(())[0]["spent"]
    beside = sum(spent["parts"][name] for name in ("start-up", "validation", "checkpoint"))
    return (spent["total_s"] - beside) / spent["steps"]


def train(overrides: tuple[str, ...], fault: str = "", throttled: str = "") -> tuple[dict, float]:
    """What `why` says of a training by two workers, and its seconds without the start."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "shoal", "train", *BASE, *overrides, "-n", "2", "--run", str(run)]
        if throttled:
            link = f"ip link set lo up && tc qdisc add dev lo root tbf rate {throttled} burst 100kb latency 1s"
            command = ["unshare", "--net", "sh", "-c", f'{link} && exec "$@"', "sh", *command]
        env = {**os.environ, "PYTHONPATH": str(FAULTS), "FAULT": fault}
        subprocess.run(command, check=True, capture_output=True, text=True, env=env)
        told = subprocess.run(
            [sys.executable, "-m", "shoal", "why", str(run), "--json"], check=True, capture_output=True, text=True
        )
    why = json.loads(told.stdout)
    return why, why["spent"]["total_s"] - why["spent"]["parts"]["start-up"]


if __name__ == "__main__":
    main()
