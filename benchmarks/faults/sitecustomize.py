"""Faults for bench_why.py: with this folder on PYTHONPATH, the environment's FAULT slows one part of a training down.

FAULT=KIND:RANK:SECONDS with KIND input, compute or validation; RANK a worker's or `all`.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import time
from typing import Any


class _Patch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads `module` as ever, then changes it."""

    def __init__(self, module: str, change: Any) -> None:
        self._module, self._change, self._inside = module, change, False

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self._module or self._inside:
            return None
        self._inside = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._inside = False
        assert spec is not None and spec.loader is not None
        self._loader, spec.loader = spec.loader, self
        return spec

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        self._change(module)


def _before(owner: type, name: str, act: Any) -> None:
    plain = getattr(owner, name)

    def slowed(*args: Any, **options: Any) -> Any:
        act()
        return plain(*args, **options)

    setattr(owner, name, slowed)


def _busy(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def _install(kind: str, rank: str, seconds: float) -> None:
    if rank not in ("all", os.environ.get("SHOAL_RANK", "0")):
        return
    rig = "shoal.strategies.replicated.rig"
    if kind == "input":
        sys.meta_path.insert(
            0,
            _Patch("shoal.data.decode", lambda m: _before(m.Pictures, "train", lambda: time.sleep(seconds))),
        )
    elif kind == "compute":
        sys.meta_path.insert(0, _Patch(rig, lambda m: _before(m.ReplicatedRig, "_loss", lambda: _busy(seconds))))
    elif kind == "validation":
        sys.meta_path.insert(
            0, _Patch(rig, lambda m: _before(m.ReplicatedRig, "evaluate", lambda: time.sleep(seconds)))
        )


# One step is prepared at a time, with and without a fault, so that a fault in the source is felt in every step.
sys.meta_path.insert(0, _Patch("shoal.data.batches", lambda m: setattr(m, "_BLOCK_BYTES", 1)))
if os.environ.get("FAULT"):
    _kind, _rank, _seconds = os.environ["FAULT"].split(":")
    _install(_kind, _rank, float(_seconds))
