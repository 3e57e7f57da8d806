from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from shoal.base.errors import UsageError
from shoal.strategies import MakeOptimizer, Rig, RigSpec, Strategy

if TYPE_CHECKING:
    import torch

    from shoal.step.gang import Gang
    from shoal.step.precision import Precision
    from shoal.step.task import Task


class Single(Strategy, frozen=True, kw_only=True):
    """One worker computes all shards, one after another."""

    name: Literal["single"] = "single"

    def check(self, workers: int, servers: int, shards: int) -> None:
        if workers != 1:
            raise UsageError(f"strategy single has one worker, not {workers}; use strategy=ddp for more")
        super().check(workers, servers, shards)

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
        from shoal.strategies.replicated.exchange import Local, Tree
        from shoal.strategies.replicated.rig import ReplicatedRig

        exchange = Tree(gang, spec.shards) if self.deterministic else Local(gang)
        return ReplicatedRig(model, make_optimizer, task, precision, gang, spec, exchange)
