"""DevicesRig: one worker with several devices, each with a rig of its own; a gang of threads makes them agree."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch

from shoal.data.batches import Batch
from shoal.data.order import share
from shoal.step.gang import Gang
from shoal.step.meters import StepOutput
from shoal.step.precision import Precision
from shoal.step.scaling import Scaler
from shoal.step.stopwatch import COMPUTE, Stopwatch
from shoal.step.task import Task
from shoal.step.threads import Crew, on
from shoal.strategies import Applied, MakeOptimizer, Rig, RigSpec
from shoal.strategies.replicated.exchange import Summed, Tree
from shoal.strategies.replicated.rig import ReplicatedRig


class DevicesRig(Rig):
    """Shards go to devices as they go to workers elsewhere. They are computed in turn by the calling thread (GPUs work
    on while the next is told what to do); only what all do together runs in the devices' own threads."""

    spreads = True

    def __init__(
        self,
        model: torch.nn.Module,
        make_optimizer: MakeOptimizer,
        task: Task,
        precision: Precision,
        gang: Gang,
        spec: RigSpec,
        devices: list[torch.device],
        *,
        on_host: bool,
        in_tree: bool,
    ) -> None:
        """gang: of the processes. on_host: add gradients in the host's memory. in_tree: add them in the shard tree's
        order."""
        self._crew, self._watch = Crew(devices, on_host=on_host), gang.watch
        for member in self._crew.gangs:  # they exchange at the same time, so that one tells of all
            member.watch = gang.watch if member.rank == 0 else Stopwatch()
        models = [model, *(copy.deepcopy(model) for _ in devices[1:])]
        n = len(devices)
        self._device_of_shard = [device for device in range(n) for _ in share(spec.shards, device, n)]

        def one(gang: Gang) -> ReplicatedRig:
            exchange = Tree(gang, spec.shards) if in_tree else Summed(gang)
            return ReplicatedRig(models[gang.rank], make_optimizer, task, precision, gang, spec, exchange)

        self._rigs = self._crew.each(one)
        self.model = self._rigs[0].model
        self._devices, self._together, self._looked = devices, spec.norm == "sync", 0

    @property
    def scaler(self) -> Scaler:  # type: ignore[override]
        return self._rigs[0].scaler

    def forward_backward(self, batch: Batch, *, last: bool) -> StepOutput:
        self._watch.to(COMPUTE)
        if self._together:
            pieces = self._cut(batch)
            outputs = self._crew.each(lambda gang: self._rigs[gang.rank].forward_backward(pieces[gang.rank], last=last))
        else:
            device = self._device_of_shard[batch.first_shard]
            with on(self._devices[device]):
                outputs = [self._rigs[device].forward_backward(batch, last=last)]
        first = self._devices[0]
        losses = [output.loss.to(first, non_blocking=True) for output in outputs]
        logits = [output.logits.to(first, non_blocking=True) for output in outputs]
        if len(outputs) == 1:
            return StepOutput(losses[0], logits[0])
        return StepOutput(torch.stack(losses).sum(), torch.cat(logits))

    def _cut(self, batch: Batch) -> list[Batch]:
        """The shards of a merged batch by device; a device without one still takes part in the statistics."""
        pieces, low = [], 0
        for device in range(len(self._devices)):
            shards = tuple(piece for piece in batch.shards if self._device_of_shard[piece[0]] == device)
            high = low + sum(size for _, size in shards)
            tensors = {name: getattr(batch, name)[low:high] for name in ("images", "labels", "indices")}
            pieces.append(replace(batch, shards=shards, **tensors))
            low = high
        return pieces

    def apply(self, lr: float, images: int) -> Applied:
        self._rigs[0].ask = self.ask
        return self._crew.each(lambda gang: self._rigs[gang.rank].apply(lr, images))[0]

    def settle(self) -> None:
        self._crew.each(lambda gang: self._rigs[gang.rank].settle())

    def evaluate(self, batch: Batch, *, averaged: bool = False) -> torch.Tensor:
        # Weights are equal everywhere, so devices take turns; nobody waits for one before the next is at work.
        self._looked += 1
        device = self._looked % len(self._devices)
        with on(self._devices[device]):
            return self._rigs[device].evaluate(batch, averaged=averaged).to(self._devices[0], non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        return self._rigs[0].state_dict()

    def load_state_dict(self, state: dict[str, Any], *, new_options: bool = False) -> None:
        for rig in self._rigs:
            rig.load_state_dict(state, new_options=new_options)

    def close(self) -> None:
        self._crew.close()
