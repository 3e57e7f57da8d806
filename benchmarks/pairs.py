"""Fair comparisons on a shared, noisy machine: A B A B …, the median of the ratios pair by pair."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def machine() -> str:
    """One line for every result: what it was measured on."""
    from shoal.base.host import cores
    from shoal.train.machine import cpu_name

    load = os.getloadavg()[0]
    return f"{cpu_name()}, {cores()} cores, Python {platform.python_version()}, load {load:.1f}"


def whole_process(argv: Sequence[str]) -> float:
    """Seconds of one whole process; its output is thrown away, its exit code is not looked at."""
    began = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - began


def training(*words: str, keep: Path | None = None) -> dict:
    """Trains as `shoal train WORDS` does, in a folder that is thrown away; the event the training ends with."""
    return next(event for event in events(*words, keep=keep) if event["event"] == "end")


def events(*words: str, keep: Path | None = None) -> list[dict]:
    """As `training`, all its events. keep: a file of what was told so far; what this very code was told before is not
    trained again, so that a benchmark of hours can be stopped and goes on."""
    about = {"words": words, "code": code()} if keep else {}  # all files are read for it
    if keep and (kept := recall(keep, about)) is not None:
        return kept
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "shoal", "train", *words, "--run", f"{folder}/run"]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    if keep:
        remember(keep, about, told)
    return told


def recall(keep: Path, about: dict[str, Any]) -> Any:
    """What was told of it when it was last measured; None when it was not. about: all that decides it."""
    about = json.loads(json.dumps(about))
    keep.touch()  # where it cannot be written, that is known before hours of work
    for line in reversed(keep.read_text().splitlines()):
        try:
            kept = json.loads(line)
        except ValueError:  # cut off
            continue
        if kept["about"] == about:
            return kept["told"]
    return None


def remember(keep: Path, about: dict[str, Any], told: Any) -> None:
    if about["code"] != code():
        sys.exit("the code changed meanwhile: nothing is kept of what was measured last")
    with open(keep, "a") as file:
        file.write("\n" + json.dumps({"about": about, "told": told}) + "\n")


def code() -> str:
    """Of all that a training or a benchmark runs, and the machine: equal where nothing changed."""
    import shoal
    from shoal.base.host import cores
    from shoal.train.machine import cpu_name

    root = Path(__file__).parents[1]
    folders = (Path(shoal.__file__).parent, root / "benchmarks", root / "tests" / "clusters")
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".yaml"))
    about = f"{cpu_name()} {cores()} {sys.version} {importlib.metadata.version('torch')}"
    return hashlib.sha256(b"".join([about.encode(), *(path.read_bytes() for path in files)])).hexdigest()


def compare(ours: Callable[[], float], theirs: Callable[[], float], n: int) -> tuple[float, float, float, float, float]:
    """Medians of both, and the median, smallest and largest of the ratios ours/theirs over n pairs."""
    pairs = [(ours(), theirs()) for _ in range(n)]
    ratios = [a / b for a, b in pairs]
    a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
    return a, b, statistics.median(ratios), min(ratios), max(ratios)


STUDENT = {
    2: 12.706,
    3: 4.303,
    4: 3.182,
    5: 2.776,
    6: 2.571,
    7: 2.447,
    8: 2.365,
    9: 2.306,
    10: 2.262,
    15: 2.145,
    20: 2.093,
}
"""Of a two-sided 95 % interval, by the number of differences."""


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Mean of paired differences, and the ends of its 95 % interval."""
    n = len(differences)
    mean, half = statistics.mean(differences), STUDENT[n] * statistics.stdev(differences) / n**0.5
    return mean, mean - half, mean + half


def verdict(name: str, figure: float, goal: str, met: bool) -> None:
    """Prints one line; a goal that is missed ends the program with 1 at its exit."""
    print(f"{'ok  ' if met else 'MISS'}  {name}: {figure:.3f} (goal {goal})", flush=True)
    if not met:
        _missed.append(name)


_missed: list[str] = []


def finish() -> None:
    sys.exit(1 if _missed else 0)
