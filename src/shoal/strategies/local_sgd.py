from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from shoal.base.duration import Duration, Span
from shoal.base.errors import UsageError
from shoal.strategies import MakeOptimizer, Rig, RigSpec, Strategy

if TYPE_CHECKING:
    import torch

    from shoal.step.gang import Gang
    from shoal.step.precision import Precision
    from shoal.step.task import Task


class LocalSgd(Strategy, frozen=True, kw_only=True):
    """Every worker steps by its own shards alone; every so many steps the workers' weights become their mean (Stich
    2019), or what an outer optimizer makes of it (DiLoCo, Douillard et al. 2023). A fraction of the bytes, and another
    training: it depends on the number of workers, and on when it validates and saves, for then they meet, too."""

    name: Literal["local_sgd"] = "local_sgd"
    every: Annotated[int, Meta(ge=1)] = 8
    """Steps between two meetings (H)."""
    after: Duration = Duration.parse("0ep")
    """How long workers agree in every step first: post-local SGD (Lin, Stich, Patel, Jaggi 2020)."""
    outer_lr: Annotated[float, Meta(gt=0)] = 1.0
    """How far to go from the last meeting's weights to the mean; 1 without momentum is the mean itself. DiLoCo: 0.7."""
    outer_momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Nesterov momentum of the outer optimizer, per meeting. DiLoCo: 0.9."""

    @property
    def same_model(self) -> bool:
        return False

    def faults(self) -> list[tuple[str, str]]:
        if self.deterministic:
            return [("deterministic", "the weights depend on the number of workers; it cannot give the same bits")]
        return []

    def misfits(self, recipe: Any) -> list[tuple[str, str]]:
        if recipe.norm == "sync":
            return [("norm", "sync exchanges statistics in every step; local_sgd needs norm: shard or frozen")]
        return []

    def check_span(self, span: Span) -> None:
        """UsageError where workers would not meet in an epoch."""
        if self.every > span.steps_per_epoch:
            raise UsageError(
                f"strategy.every: {self.every} steps between meetings are more than the {span.steps_per_epoch} of an "
                f"epoch; use at most {span.steps_per_epoch}"
            )

    def rig(
        self,
        model: torch.nn.Module,
        make_optimizer: MakeOptimizer,
        task: Task,
        precision: Precision,
        gang: Gang,
        spec: RigSpec,
    ) -> Rig:
        from shoal.strategies.replicated.local import LocalRig, Own

        span = Span(spec.images_per_epoch, spec.batch)
        self.check_span(span)
        return LocalRig(
            model,
            make_optimizer,
            task,
            precision,
            gang,
            spec,
            Own(gang),
            every=self.every,
            after=float(self.after.images(span)),
            outer_lr=self.outer_lr,
            outer_momentum=self.outer_momentum,
        )
