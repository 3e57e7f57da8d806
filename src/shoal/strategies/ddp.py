from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from shoal.strategies import MakeOptimizer, Rig, RigSpec, Strategy

if TYPE_CHECKING:
    import torch

    from shoal.step.gang import Gang
    from shoal.step.precision import Precision
    from shoal.step.task import Task


class Ddp(Strategy, frozen=True, kw_only=True):
    """All workers hold the model and add their gradients in buckets while the backward pass goes on
    (torch's DistributedDataParallel over gloo or nccl); MXNet's dist_sync and dist_device_sync without servers."""

    name: Literal["ddp"] = "ddp"
    bucket_mb: Annotated[float, Meta(gt=0)] = 25.0
    """Size of a gradient bucket, MiB."""
    unused_parameters: bool = False
    """Look for parameters that a step did not use; needed by models with branches that are not always taken."""

    def rig(
        self,
        model: torch.nn.Module,
        make_optimizer: MakeOptimizer,
        task: Task,
        precision: Precision,
        gang: Gang,
        spec: RigSpec,
    ) -> Rig:
        from shoal.strategies.replicated.exchange import Bucketed, Local, Tree
        from shoal.strategies.replicated.rig import ReplicatedRig

        if self.deterministic:
            exchange = Tree(gang, spec.shards)
        elif gang.num_ranks == 1:
            exchange = Local(gang)
        else:
            exchange = Bucketed(gang, bucket_mb=self.bucket_mb, unused_parameters=self.unused_parameters)
        return ReplicatedRig(model, make_optimizer, task, precision, gang, spec, exchange)
