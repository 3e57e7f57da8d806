"""A recording of some steps: all workers on one time line, parts without gaps, torch's operators inside them."""

from __future__ import annotations

import gzip
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from gangs import GangPool
from shoal.step.gang import Gang
from shoal.step.stopwatch import COMPUTE, EXCHANGE
from shoal.train.tracing import SETTLE, Tracing


def work(gang: Gang, path: Path, steps: int) -> tuple[float, float]:
    """When the recorded steps began and ended, seconds of unix time, where three are asked for."""
    tracing, watch, began = Tracing(gang, 3), gang.watch, 0.0
    for step in range(steps):
        if step == SETTLE:
            began = time.time()
        watch.to(COMPUTE)
        torch.ones(20, 20).mm(torch.ones(20, 20))
        watch.to(EXCHANGE)
        gang.barrier()
        watch.lap()
        tracing.lap()
    ended = time.time()
    tracing.save(path)
    return began, ended


def events(path: Path) -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def test_two_workers_on_one_time_line(gang_pool: GangPool, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    times = gang_pool.run(work, 2, path, SETTLE + 5)
    found = events(path)
    names = [event["args"]["name"] for event in found if event["name"] == "process_name"]
    assert [name.split(" on ")[0] + name[name.index(":") :] for name in names] == [
        f"worker {rank}: {what}" for rank in (0, 1) for what in ("parts of a step", "torch")
    ]
    for rank, (began, ended) in enumerate(times):
        spans = [event for event in found if event["pid"] == 1000 * rank and event["ph"] == "X"]
        told = [span["name"] for span in spans if span["name"] != "other"]
        assert told == ["compute", "exchange"] * 3
        for before, after in pairwise(spans):
            assert abs(before["ts"] + before["dur"] - after["ts"]) < 5  # microseconds: float64 of unix time has steps
        products = [event for event in found if event["pid"] == 1000 * rank + 1 and event["name"] == "aten::mm"]
        computing = [(span["ts"], span["ts"] + span["dur"]) for span in spans if span["name"] == "compute"]
        assert len(products) == 3
        for product, (low, high) in zip(products, computing, strict=True):
            assert low - 2000 < product["ts"] < high + 2000  # the profiler keeps a clock of its own
        assert began - 0.01 < spans[0]["ts"] / 1e6 < ended + 0.01


def test_a_training_too_short_leaves_what_there_was(gang_pool: GangPool, tmp_path: Path) -> None:
    gang_pool.run(work, 1, tmp_path / "none.json.gz", 3)
    assert events(tmp_path / "none.json.gz") == []
    gang_pool.run(work, 1, tmp_path / "one.json.gz", SETTLE + 1)
    spans = [event for event in events(tmp_path / "one.json.gz") if event["pid"] == 0 and event["ph"] == "X"]
    assert [span["name"] for span in spans][:2] == ["compute", "exchange"]
