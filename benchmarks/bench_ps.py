"""Parameter servers under a training, by turns:

bench_ps.py sync cifar10-resnet8 data.path=FOLDER     ps with 2 workers and 1 server against ddp with 2 workers
bench_ps.py async cifar10-resnet8 data.path=FOLDER    4 workers, one of them slowed 4 times, against the sum of their
                                                      own speeds: the same at the same time, with nothing exchanged
bench_ps.py accuracy cifar10-proof data.path=FOLDER   asynchronous against synchronous, 4 workers, by paired seeds
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from pairs import compare, finish, interval, machine, training, verdict

PAIRS = 7
STEPS = 150
SEEDS = 5
WORKERS, SLOWED, ASYNC_S = 4, 4, 10.0


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "worker":
        return worker()
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("sync", "async", "accuracy"))
    parser.add_argument("recipe", nargs="?", default="cifar10-resnet8")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--keep", type=Path, help="accuracy: a file of the trainings so far; stopped, it goes on there")
    options = parser.parse_args()
    print(machine())
    what = (options.recipe, *options.overrides)
    if options.mode == "accuracy":
        accuracy(what, min(options.pairs, SEEDS), options.keep)
    else:
        {"sync": sync, "async": asynchronous}[options.mode]((*what, "data.limit=20000"), options.pairs)
    finish()


def sync(what: tuple[str, ...], pairs: int) -> None:
    short = [f"{key}={STEPS}st" for key in ("length", "eval_every", "save_every")]

    def speed(strategy: str, *more: str) -> float:
        return training(*what, *short, f"strategy={strategy}:threads=1", "-n", "2", *more)["images_per_s"]

    ours, theirs, ratio, low, high = compare(lambda: speed("ps", "-s", "1"), lambda: speed("ddp"), pairs)
    print(f"2 workers of 1 thread: ps with 1 server {ours:.0f} images/s, ddp {theirs:.0f} (n = {pairs} pairs)")
    verdict(f"ps / ddp ({low:.2f} to {high:.2f})", ratio, ">= 0.9", ratio >= 0.9)


def asynchronous(what: tuple[str, ...], pairs: int) -> None:
    ours, theirs, ratio, low, high = compare(lambda: total(what, True), lambda: total(what, False), pairs)
    print(
        f"{WORKERS} workers of 1 thread, one {SLOWED} x slower: {ours:.0f} images/s, "
        f"with nothing exchanged {theirs:.0f} (n = {pairs} pairs)"
    )
    verdict(f"async / own speeds ({low:.2f} to {high:.2f})", ratio, ">= 0.85", ratio >= 0.85)


def accuracy(what: tuple[str, ...], seeds: int, keep: Path | None) -> None:
    def top1(mode: str, seed: int) -> float:
        words = (f"strategy=ps:mode={mode},threads=1", "-n", str(WORKERS), "-s", "1", f"seed={seed}")
        found = 100 * training(*what, *words, keep=keep)["top1"]
        print(f"{mode}, seed {seed}: {found:.2f}", flush=True)
        return found

    differences = [top1("async", seed) - top1("sync", seed) for seed in range(seeds)]
    mean, low, high = interval(differences)
    print(f"async - sync, points of top-1 by seed: {', '.join(f'{one:+.2f}' for one in differences)}")
    verdict(f"mean {mean:+.2f}, 95 % interval {low:+.2f} to {high:+.2f}; its lower end", low, "> -1", low > -1)


def total(what: tuple[str, ...], exchange: bool) -> float:
    """Images/s of all workers together, in the same seconds."""
    from dataclasses import replace

    from shoal.base.run import Run
    from shoal.launch.head import Head
    from shoal.launch.job import Job
    from shoal.launch.launchers.local import Local, local_line
    from shoal.recipe.load import dump, load

    loaded = load(what[0], (*what[1:], "strategy=ps:mode=async,threads=1", "length=1000ep", "eval_every=1000ep"))
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        run.folder.mkdir()
        run.recipe.write_text(dump(loaded.recipe))
        own = {"worker": [__file__, "worker"], "server": ["-m", "shoal", "server"]}
        strategy = loaded.recipe.strategy
        roles = tuple(
            replace(
                role,
                argv=(sys.executable, *own[role.name], "--run", str(run.folder), *_named(role.name, loaded.name)),
                env={"BENCH_EXCHANGE": str(int(exchange))},
            )
            for role in strategy.roles(WORKERS, 1)  # type: ignore[attr-defined]
        )
        with open(os.devnull, "w") as nowhere:
            outcome = Head(Local().plan(Job(roles, run.folder)), local_line, console=nowhere).start().wait(120)
        if outcome.exit_code:
            sys.exit("\n".join(outcome.lines))
        lines = [line for rank in range(WORKERS) for line in run.log("worker", rank).read_text().splitlines()]
    return sum(float(line.split()[1]) for line in lines if line.startswith("BENCH"))


def _named(role: str, name: str) -> list[str]:
    return ["--name", name, "--resume", "never"] if role == "worker" else []


def worker() -> None:
    """One worker that counts its images for some seconds; with nothing exchanged, if the environment says so."""
    from shoal.cli.worker import command
    from shoal.strategies import Applied
    from shoal.strategies.replicated.asynchronous import AsyncRig

    rank, exchange = int(os.environ["SHOAL_RANK"]), os.environ["BENCH_EXCHANGE"] == "1"
    take, apply = AsyncRig.take, AsyncRig.apply
    state = {"began": 0.0, "images": 0, "position": rank, "since": 0.0}

    def timed_take(rig: AsyncRig, limit: int) -> int | None:
        now = time.perf_counter()
        if not state["began"]:
            for _ in range(3):
                rig._gang.barrier()  # all begin together
            state["began"] = state["since"] = time.perf_counter()
        elif now - state["began"] > ASYNC_S:
            print(f"BENCH {state['images'] / (now - state['began'])}", flush=True)
            rig._client.close()
            os._exit(0)
        if exchange:
            return take(rig, limit)
        state["position"] += WORKERS
        return int(state["position"])

    def slowed_apply(rig: AsyncRig, lr: float, images: int) -> Applied:
        if exchange:
            applied = apply(rig, lr, images)
        else:
            rig._buffers.keep()
            rig._batches.clear()
            applied = Applied(True, 0)
        state["images"] += images
        if rank == WORKERS - 1:
            time.sleep((SLOWED - 1) * (time.perf_counter() - state["since"]))
        state["since"] = time.perf_counter()
        return applied

    AsyncRig.take, AsyncRig.apply = timed_take, slowed_apply  # type: ignore[method-assign]
    command(sys.argv[2:], standalone_mode=False)


if __name__ == "__main__":
    main()
