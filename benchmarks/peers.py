"""Images per second beside other systems, in one run, by turns: the lab's net (pre-activation ResNet-8, 28 px, batches
of 128 per worker, one thread each) by Shoal, by the pattern of PyTorch's ImageNet example, by Lightning, by MXNet.

    peers.py [--rounds 5] [--only torch,lightning,mxnet] [--keep FOLDER]

Lightning and MXNet are installed into throw-away environments (--keep: kept, and used again); what cannot be installed
is left out, with the reason. MXNet trains one prepared batch again and again; the torch-based ones crop and mirror
pictures one by one in a loader process, as their tutorials do; Shoal does all that it does in a training.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

from pairs import finish, machine, training, verdict

HERE = Path(__file__).parent / "peers"
BATCH, STEPS = 128, 60
NEEDS = {"lightning": ["lightning"], "mxnet": ["mxnet==1.9.1", "numpy==1.23.5"]}
GOAL = 1.2
Rate = Callable[[int], float]


def environment(folder: Path, name: str) -> Path:
    """A Python that has what the peer needs. ValueError where it cannot be had."""
    python = folder / name / "bin" / "python"
    if not python.exists():
        venv.create(folder / name, with_pip=True)
    site = next((folder / name / "lib").glob("python*")) / "site-packages"
    if name != "mxnet":  # torch and Shoal, as they are here
        (site / "shared.pth").write_text(
            "\n".join(path for path in sys.path if path.endswith(("site-packages", "src")))
        )
    argv = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *NEEDS[name]]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise ValueError((done.stderr.strip() or "pip failed").splitlines()[-1])
    return python


def told(argv: list[str], workers: int) -> float:
    """Sum of the workers' rates, from what a command said, or from the logs that its launcher kept."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [folder if word == "LOGS" else word for word in argv]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=HERE)
        logs = [path.read_text() for path in Path(folder).rglob("worker-*.log")]
        said = "\n".join(logs or [done.stdout])
    rates = re.findall(r'{"images_per_s": ([^,}]+)', said)  # workers that share a pipe may share a line
    if done.returncode or len(rates) != workers:
        raise RuntimeError(f"{argv}: exit {done.returncode}\n{done.stderr}\n{said[-2000:]}")
    return sum(float(rate) for rate in rates)


def launched(workers: int, *words: str) -> list[str]:
    return [sys.executable, "-m", "shoal", "launch", "-n", str(workers), "--log-dir", "LOGS", *words]


def shoal(strategy: str) -> Rate:
    keys = ("data=synthetic", f"data.images={BATCH * STEPS}", "batch=null", f"batch_per_worker={BATCH}", "shards=auto")
    when = ("length=70st", "eval_every=70st", "save_every=70st", "strategy.threads=1")

    def rate(workers: int) -> float:
        what = f"strategy={strategy if workers > 1 else 'single'}"
        return training("cifar10-resnet8", *keys, what, *when, "-n", str(workers))["images_per_s"]

    return rate


def torch_example(workers: int) -> float:
    words = ["torch_example.py", str(BATCH), str(STEPS)]
    return told([sys.executable, *words] if workers == 1 else launched(workers, "--", sys.executable, *words), workers)


def lightning(python: Path) -> Rate:
    return lambda workers: told([str(python), "lightning_loop.py", str(BATCH), str(STEPS), str(workers)], workers)


def mxnet(python: Path) -> Rate:
    def rate(workers: int) -> float:
        words = [str(python), "mxnet_resnet.py", "local" if workers == 1 else "dist_sync", str(BATCH), str(STEPS)]
        return told(words if workers == 1 else launched(workers, "-s", "1", "--", *words), workers)

    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="torch,lightning,mxnet")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as throwaway:
        ways: dict[str, Rate] = {"Shoal, ddp": shoal("ddp"), "Shoal, ps": shoal("ps")}
        for name, make in (("torch", None), ("lightning", lightning), ("mxnet", mxnet)):
            if name not in options.only.split(","):
                continue
            try:
                found = torch_example if make is None else make(environment(options.keep or Path(throwaway), name))
                ways[{"torch": "PyTorch's example", "lightning": "Lightning", "mxnet": "MXNet 1.9.1"}[name]] = found
            except (ValueError, OSError) as error:
                print(f"{name} is left out: {error}")
        rates: dict[tuple[str, int], list[float]] = {(name, n): [] for name in ways for n in (1, 2)}
        del rates["Shoal, ps", 1]  # nobody trains alone by servers
        for _ in range(options.rounds):
            for (name, workers), held in rates.items():
                held.append(ways[name](workers))
                print(f"{name}, {workers}: {held[-1]:,.0f} images/s", flush=True)
    show(rates, options.rounds)
    finish()


def show(rates: dict[tuple[str, int], list[float]], rounds: int) -> None:
    """A Markdown table; ratios are medians of the rounds' own ratios."""
    ours = {1: rates["Shoal, ddp", 1], 2: rates["Shoal, ddp", 2]}
    print(
        f"\n| | workers | images/s (median of {rounds}; smallest to largest) | Shoal, ddp / it |\n"
        "| --- | --- | --- | --- |"
    )
    for (name, workers), held in rates.items():
        ratios = [a / b for a, b in zip(ours[workers], held, strict=True)]
        spread = f"{statistics.median(held):,.0f}; {min(held):,.0f} to {max(held):,.0f}"
        ratio = f"{statistics.median(ratios):.2f}; {min(ratios):.2f} to {max(ratios):.2f}"
        print(f"| {name} | {workers} | {spread} | {ratio} |")
    print()
    for workers, what in ((1, "local"), (2, "dist_sync")):
        if ("MXNet 1.9.1", workers) in rates:
            pairs = zip(ours[workers], rates["MXNet 1.9.1", workers], strict=True)
            ratio = statistics.median(a / b for a, b in pairs)
            verdict(
                f"{workers} worker{'s' * (workers > 1)}, Shoal / MXNet's {what}", ratio, f">= {GOAL}", ratio >= GOAL
            )


if __name__ == "__main__":
    main()
