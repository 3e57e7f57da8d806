from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from shoal.base.errors import UsageError
from shoal.strategies import MakeOptimizer, Rig, RigSpec, Strategy

if TYPE_CHECKING:
    import torch

    from shoal.step.gang import Gang
    from shoal.step.precision import Precision
    from shoal.step.task import Task

_MICROBATCHES = 4
"""For each stage, where nobody says: a quarter of the time is waited away with two stages of them."""


class Pipeline(Strategy, frozen=True, kw_only=True):
    """Each worker holds a stretch of the model's layers, cut where measured times are equal; a batch's shards follow
    each other through the stages (torch's pipelining). For models that do not fit, at few bytes; the same training as
    every other strategy. N workers are N/stages pipelines, which share each batch out."""

    name: Literal["pipeline"] = "pipeline"
    stages: Annotated[int, Meta(ge=1)] | None = None
    """Pieces the model is cut into; absent: as many as workers."""
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """gpipe: all forward passes of a step first, then all backward passes. 1f1b: each stage begins backward passes as
    soon as it can; the same result with fewer activations in memory."""
    microbatches: Annotated[int, Meta(ge=1)] | None = None
    """Shards that each pipeline computes of a batch, one behind the other. Absent: as the recipe's shards say, or with
    shards: auto, 4 for each stage."""

    def misfits(self, recipe: Any) -> list[tuple[str, str]]:
        from shoal.strategies.fsdp import divided_misfits

        wrong = divided_misfits(recipe, self.name)
        if recipe.norm == "sync":
            told = "sync needs all images of a batch at each layer at once, and shards go through stages one by one"
            wrong.append(("norm", f"{told}; pipeline needs norm: shard or frozen"))
        return wrong

    def _stages(self, workers: int) -> int:
        return self.stages or workers

    def check(self, workers: int, servers: int, shards: int) -> None:
        stages = self._stages(workers)
        if workers % stages:
            near = max(stages, workers - workers % stages)
            raise UsageError(
                f"strategy pipeline: {workers} workers are no whole number of pipelines of {stages} stages; "
                f"use {near} workers, or another strategy.stages"
            )
        pipelines = workers // stages
        if pipelines > shards:
            raise UsageError(
                f"strategy pipeline: {workers} workers are {pipelines} pipelines of {stages} stages, and a batch has "
                f"{shards} shard{'s' * (shards != 1)}; use at most {shards * stages} workers, or set "
                f"shards={pipelines} (which trains another model) or shards=auto"
            )
        super().check(pipelines, servers, shards)
        if self.microbatches is not None and shards != self.microbatches * pipelines:
            each = f"microbatches={shards // pipelines}" if shards % pipelines == 0 else "no microbatches"
            raise UsageError(
                f"strategy pipeline: microbatches={self.microbatches} for {pipelines} pipelines are "
                f"{self.microbatches * pipelines} shards of a batch, and the recipe has {shards}, which is "
                f"another model; say {each}, or shards={self.microbatches * pipelines}"
            )

    def at_once(self, workers: int) -> int:
        stages = self._stages(workers)
        return max(1, workers // stages) * (self.microbatches or (_MICROBATCHES * stages if stages > 1 else 1))

    def takes(self, workers: int, shards: int | str) -> bool:
        stages = self._stages(workers)
        return not workers % stages and (isinstance(shards, str) or workers // stages <= shards)

    def seated(self, gang: Gang) -> Gang:
        from shoal.step.gang import Group

        if not isinstance(gang, Group):
            return gang
        from shoal.strategies.divided.grid import Grid

        return Grid(gang, self._stages(gang.num_ranks))

    def rig(
        self,
        model: torch.nn.Module,
        make_optimizer: MakeOptimizer,
        task: Task,
        precision: Precision,
        gang: Gang,
        spec: RigSpec,
    ) -> Rig:
        if gang.num_ranks == 1:
            from shoal.strategies.replicated.exchange import Local, Tree
            from shoal.strategies.replicated.rig import ReplicatedRig

            exchange = Tree(gang, spec.shards) if self.deterministic else Local(gang)
            return ReplicatedRig(model, make_optimizer, task, precision, gang, spec, exchange)
        from shoal.strategies.divided.grid import Grid
        from shoal.strategies.divided.staged import StagedRig

        assert isinstance(gang, Grid), "a gang that has no stages"
        gpipe = self.schedule == "gpipe"
        return StagedRig(
            model, make_optimizer, task, precision, gang, spec, gpipe=gpipe, deterministic=self.deterministic
        )
