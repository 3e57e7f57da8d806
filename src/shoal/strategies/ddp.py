from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from shoal.strategies import MakeOptimizer, Rig, RigSpec, Strategy

if TYPE_CHECKING:
    import torch

    from shoal.step.gang import Gang
    from shoal.step.precision import Precision
    from shoal.step.task import Task
    from shoal.strategies.replicated.hooks import Hook


class Ddp(Strategy, frozen=True, kw_only=True):
    """All workers hold the model and add their gradients in buckets while the backward pass goes on
    (torch's DistributedDataParallel over gloo or nccl); MXNet's dist_sync and dist_device_sync without servers."""

    name: Literal["ddp"] = "ddp"
    bucket_mb: Annotated[float, Meta(gt=0)] | None = None
    """Size of every gradient bucket, MiB. none: torch's choice, a first bucket of 1, which leaves early, then 25."""
    unused_parameters: bool = False
    """Look for parameters that a step did not use; needed by models with branches that are not always taken."""

    compress: Literal["none", "fp16", "bf16", "powersgd", "2bit"] = "none"
    """Of the gradients that workers exchange, for slow networks; it trains another model. fp16, bf16: half the bytes.
    powersgd: two thin matrices in place of each, of powersgd_rank; what they leave out is added to the next step. Rank
    1 loses accuracy where training is short (2.5 points on cifar10-proof, n = 5 seeds). 2bit: each number becomes
    threshold, -threshold or 0, and the rest is added to the next step: n/32 of the bytes for n workers. It loses
    accuracy, too (3.1 points there, 1.1 on the digits). Where a short batch leaves a worker without images, gradients
    are sent whole."""
    powersgd_rank: Annotated[int, Meta(ge=1)] = 1
    """Of compress: powersgd; more is closer to the gradient, and more bytes."""
    powersgd_after: Annotated[int, Meta(ge=2)] = 50
    """Steps of whole gradients before powersgd begins, after each start of the workers."""
    threshold: Annotated[float, Meta(gt=0)] = 0.5
    """Of compress: 2bit, in the gradient of the sum over a batch's images, as for ps."""

    shard_optimizer: bool = False
    """Share the optimizer's state out among the workers (ZeRO's first stage): the same bits, 1/N of that memory, and
    half as many bytes again, for weights travel after the step."""

    @property
    def same_model(self) -> bool:
        return self.compress == "none"

    def faults(self) -> list[tuple[str, str]]:
        if self.compress != "none" and self.deterministic:
            told = f"{self.compress} rounds each worker's gradient, which depends on how many workers there are"
            return [("compress", f"{told}; deterministic needs compress: none")]
        return []

    def _hook(self, num_ranks: int, batch: int) -> Hook | None:
        from shoal.strategies.replicated import hooks

        match self.compress:
            case "fp16":  # times a power of two below the batch: gradients are means over so many images
                return hooks.Half(num_ranks, "fp16", scale=float(1 << batch.bit_length() - 1))
            case "bf16":
                return hooks.Half(num_ranks, "bf16")
            case "powersgd":
                return hooks.PowerSgd(num_ranks, self.powersgd_rank, self.powersgd_after)
            case "2bit":
                return hooks.Ternary(num_ranks, self.threshold / batch)
        return None

    def rig(
        self,
        model: torch.nn.Module,
        make_optimizer: MakeOptimizer,
        task: Task,
        precision: Precision,
        gang: Gang,
        spec: RigSpec,
    ) -> Rig:
        from shoal.step.gang import Alone
        from shoal.strategies.replicated.exchange import Bucketed, Local, Tree
        from shoal.strategies.replicated.rig import ReplicatedRig
        from shoal.strategies.replicated.sharded import Sharded

        if self.deterministic:
            exchange = Tree(gang, spec.shards)
        elif isinstance(gang, Alone):
            exchange = Local(gang)
        else:
            exchange = Bucketed(
                gang,
                bucket_mb=self.bucket_mb,
                unused_parameters=self.unused_parameters,
                hook=self._hook(gang.num_ranks, spec.batch),
            )
        if self.shard_optimizer and gang.num_ranks > 1:
            make_whole = make_optimizer
            make_optimizer = lambda model: Sharded(make_whole(model), gang)  # type: ignore[return-value]  # noqa: E731
        return ReplicatedRig(model, make_optimizer, task, precision, gang, spec, exchange)
