"""What this machine lets a worker choose without asking, and why: device and threads."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch

from shoal import __version__
from shoal.base.errors import UsageError
from shoal.base.host import cores
from shoal.base.world import World
from shoal.launch.facts import code_hash
from shoal.strategies import Strategy
from shoal.train import allocator


@dataclass(frozen=True)
class Machine:
    """The choices of one worker, with their reasons."""

    device: torch.device
    threads: int
    why: tuple[str, ...]

    @staticmethod
    def choose(strategy: Strategy, world: World | None) -> Machine:
        """Device by rank on the node; threads so that the workers of a host share its cores."""
        here = world.ranks_per_node if world else 1
        available = cores()
        if strategy.threads is not None:
            threads, reason = strategy.threads, "strategy.threads"
        elif strategy.deterministic:
            threads, reason = 1, "deterministic: the same for any number of workers"
        else:
            threads, reason = (
                max(1, available // here),
                f"{available} cores, {here} worker{'s' if here > 1 else ''} here",
            )
        why = [f"threads per worker: {threads} ({reason})"]
        device = device_for(world)
        if device.type == "cuda":
            why.append(f"device: {torch.cuda.get_device_name(device)} (one per worker, by rank on the host)")
            why.append(
                "tf32: off (deterministic)" if strategy.deterministic else
                "tf32: on (products of float32 keep 10 bits of each factor's fraction, sums are float32)"
            )  # fmt: skip
        else:
            why.append("device: cpu (no CUDA device is visible)")
            why.append(allocator.describe())
        return Machine(device, threads, tuple(why))

    def use(self, *, deterministic: bool) -> None:
        """Makes the choices hold for this process."""
        torch.set_num_threads(self.threads)
        if self.device.type == "cpu":
            allocator.keep_memory()
        elif self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not deterministic
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.backends.cudnn.benchmark = False

    def describe(self) -> dict[str, Any]:
        """For environment.json: versions and hardware, no variables of the environment."""
        import numpy

        return {
            "shoal": __version__,
            "code": code_hash(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "timm": version("timm"),
            "numpy": numpy.__version__,
            "system": f"{platform.system()} {platform.machine()}",
            "cpu": cpu_name(),
            "cores": cores(),
            "host": platform.node(),
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "threads": self.threads,
        }


def tensor_cores(precision: str, device: torch.device, shard: int, channels_last: bool) -> list[str]:
    """What the recipe leaves unused of a GPU's units for half precision; shard: images computed at a time."""
    if device.type != "cuda" or precision in ("fp32", "fp64", "O0"):
        return []
    told = []
    if not channels_last:
        told.append("model.channels_last: false (true is faster for most models in half precision)")
    if shard % 8:
        told.append(f"shards of {shard} images (multiples of 8 are faster in half precision)")
    return told


def device_for(world: World | None) -> torch.device:
    """A CUDA device by rank on the node, or the CPU where there is none. UsageError: fewer devices than workers."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    here, devices = world.ranks_per_node if world else 1, torch.cuda.device_count()
    shown_one_each = devices == 1 and world is not None and world.launcher != "shoal"
    if here > devices and not shown_one_each:
        raise UsageError(f"{here} workers on this host for {devices} CUDA devices; at most one worker per device")
    return torch.device("cuda", 0 if shown_one_each or world is None else world.rank_of_node)


def cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"
