from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from shoal.strategies import MakeOptimizer, Rig, RigSpec, Strategy

if TYPE_CHECKING:
    import torch

    from shoal.step.gang import Gang
    from shoal.step.precision import Precision
    from shoal.step.task import Task


class Fsdp(Strategy, frozen=True, kw_only=True):
    """Each worker holds 1/N of every tensor, of its gradient and of the optimizer's state; a block of the model is
    gathered while it is computed with (torch's fully sharded data parallel, FSDP2). Memory for models that do not fit,
    at three times the model's bytes for each shard of a worker; the same training as every other strategy."""

    name: Literal["fsdp"] = "fsdp"

    def faults(self) -> list[tuple[str, str]]:
        if self.deterministic:
            told = "gradients are added where their pieces lie, in no fixed order; use ddp:shard_optimizer=true"
            return [("deterministic", told)]
        return []

    def misfits(self, recipe: Any) -> list[tuple[str, str]]:
        return divided_misfits(recipe, self.name)

    def rig(
        self,
        model: torch.nn.Module,
        make_optimizer: MakeOptimizer,
        task: Task,
        precision: Precision,
        gang: Gang,
        spec: RigSpec,
    ) -> Rig:
        from shoal.strategies.divided.scattered import ScatteredRig
        from shoal.strategies.replicated.exchange import Local
        from shoal.strategies.replicated.rig import ReplicatedRig

        if gang.num_ranks == 1:
            return ReplicatedRig(model, make_optimizer, task, precision, gang, spec, Local(gang))
        return ScatteredRig(model, make_optimizer, task, precision, gang, spec)


def divided_misfits(recipe: Any, name: str) -> list[tuple[str, str]]:
    """What of a recipe needs the whole model on every worker."""
    wrong = []
    if recipe.precision.name in ("O2", "O3"):
        told = f"{recipe.precision.name} casts the whole model at once"
        wrong.append(("precision", f"{told}; {name} needs fp16 (O1), bf16 or fp32"))
    if recipe.model.compile:
        wrong.append(("model.compile", f"compiling needs the whole model in one place; {name} has parts of it"))
    if recipe.monitor is not None:
        wrong.append(("monitor", f"it looks at whole tensors on one worker; {name} has parts of them; leave it out"))
    return wrong
