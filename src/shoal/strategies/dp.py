from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from shoal.base.errors import UsageError
from shoal.base.host import gpus
from shoal.strategies import MakeOptimizer, Rig, RigSpec, Strategy

if TYPE_CHECKING:
    import torch

    from shoal.step.gang import Gang
    from shoal.step.precision import Precision
    from shoal.step.task import Task


class Dp(Strategy, frozen=True, kw_only=True):
    """One worker computes on several devices, each with a copy of the model: MXNet's kvstore `local` and `device`.
    Without GPUs the devices are virtual ones of the CPU, which take turns: the same figures, at the speed of one."""

    name: Literal["dp"] = "dp"
    devices: Annotated[int, Meta(ge=1)] | None = None
    """Devices of the worker; absent: its GPUs, or one virtual device of the CPU."""
    kvstore: Literal["local", "device", "auto"] = "auto"
    """Where gradients are added: local, in the host's memory; device, on the device that owns the piece; auto: on
    devices from 4 GPUs on."""

    def check(self, workers: int, servers: int, shards: int) -> None:
        if workers != 1:
            raise UsageError(
                f"strategy dp has one worker with several devices, not {workers} workers; "
                f"use strategy.devices={workers} instead, or strategy=ddp"
            )
        super().check(workers, servers, shards)
        if self.at_once(1) > shards:
            raise UsageError(
                f"{self.at_once(1)} devices for {shards} shards: a device takes whole shards; use at most {shards} "
                "devices, or set more shards (which trains another model) or shards=auto"
            )

    def at_once(self, workers: int) -> int:
        return self.devices or gpus() or 1

    def spread(self, count: int) -> tuple[tuple[str, ...], int]:
        return (f"strategy.devices={count}",), 1

    def takes(self, workers: int, shards: int | str) -> bool:
        return workers == 1

    def rig(
        self,
        model: torch.nn.Module,
        make_optimizer: MakeOptimizer,
        task: Task,
        precision: Precision,
        gang: Gang,
        spec: RigSpec,
    ) -> Rig:
        import torch

        from shoal.strategies.replicated.devices import DevicesRig

        count = self.at_once(1)
        if gang.device.type == "cuda":
            if count > torch.cuda.device_count():
                raise UsageError(f"strategy.devices: {count} of {torch.cuda.device_count()} visible CUDA devices")
            devices = [torch.device("cuda", number) for number in range(count)]
        else:
            devices = [gang.device] * count
        on_host = self.kvstore == "local" or (self.kvstore == "auto" and gpus() < 4)
        return DevicesRig(
            model, make_optimizer, task, precision, gang, spec, devices, on_host=on_host, in_tree=self.deterministic
        )
