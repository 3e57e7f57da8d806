"""Strategy and Rig: how the workers agree. One file per strategy; `replicated/` holds what several of them share.

The launcher knows roles, never strategies; a strategy knows roles, never launchers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from msgspec import Meta

from shoal.base.errors import UsageError
from shoal.recipe.part import Part

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from shoal.base.world import World
    from shoal.data.batches import Batch
    from shoal.launch.job import Role
    from shoal.step.gang import Gang
    from shoal.step.meters import StepOutput
    from shoal.step.precision import Precision
    from shoal.step.scaling import Scaler
    from shoal.step.task import Task


@dataclass(frozen=True)
class RigSpec:
    """What a rig must know of the recipe beside its parts."""

    seed: int
    shards: int
    batch: int = 1
    """Images per optimizer step, of the whole job."""
    images_per_epoch: int = 1
    norm: Literal["shard", "sync", "frozen"] = "shard"
    clip_norm: float | None = None
    ema_half_life: float | None = None
    """Images after which an old weight's part in the average is one half; None: no average."""
    mean: tuple[float, ...] = (0.0,)
    """Per channel, pixels 0 to 255; the model sees (pixel - mean) / std."""
    std: tuple[float, ...] = (255.0,)
    shape: tuple[int, int, int] = (1, 8, 8)
    """Channels, height and width of what the model sees."""
    channels_last: bool = False
    compile: bool = False


class Resliced(Exception):
    """Workers are gone and nothing was applied: the rest compute the same step again, by the gang's new places."""


class Applied(NamedTuple):
    """What all workers agreed on in a step."""

    stepped: bool
    """False when the step was skipped for a non-finite gradient."""
    asked: int
    """The largest `ask` of any worker in this step."""


class Rig(ABC):
    """A strategy set up: model, optimizer and agreement. Three verbs make a step and a validation."""

    model: torch.nn.Module
    scaler: Scaler
    """The loss scale, and what was skipped for it."""
    asynchronous: ClassVar[bool] = False
    """Workers take shards as they come (`replicated.asynchronous`), instead of every step together."""
    bytes_sent: int = 0
    """Bytes this worker has sent for gradients and buffers so far."""
    ask: int = 0
    """A small number that travels with the step's exchange (a stop asked for by a signal, say); 0 asks nothing."""

    seen: int = 0
    """Images that all workers have seen before the step under way."""
    told: tuple[str, ...] = ()
    """What was chosen here for this model, to be told when a training starts."""
    looks_together: ClassVar[bool] = False
    """Whether `evaluate` is a collective, which every worker calls equally often."""
    spreads: ClassVar[bool] = False
    """Whether it moves batches from the host to several devices itself; else they may come to the gang's device."""

    @abstractmethod
    def forward_backward(self, batch: Batch, *, last: bool) -> StepOutput:
        """Computes one shard (or this worker's merged share); `last` says none follows in this step. What it returns
        may be filled as late as in the step's last call."""

    @abstractmethod
    def apply(self, lr: float, images: int) -> Applied:
        """Exchanges gradients, clips, steps; equal on every worker. `images`: of the global batch.

        A worker without images in this step calls it all the same. NonFiniteError when the precision says stop;
        Resliced when the step is to be computed again by fewer.
        """

    def meet(self) -> None:  # noqa: B027  (most workers never part)
        """Makes one model of the workers' own, where they go apart between. A collective, before a validation."""

    @abstractmethod
    def settle(self) -> None:
        """Raises what earlier steps found but did not wait for (devices report late). Before reading or saving."""

    @abstractmethod
    def evaluate(self, batch: Batch, *, averaged: bool = False) -> Tensor:
        """Logits [B, classes], without gradients; averaged: by the moving average of the weights."""

    @property
    def num_parameters(self) -> int:
        """Numbers that are trained, over all workers. A collective."""
        return sum(held.numel() for held in self.model.parameters() if held.requires_grad)

    def broken(self) -> str | None:
        """The first tensor of the model that is not finite, if any; None on all workers or on none. A collective."""
        return next((name for name, held in self.model.state_dict().items() if not held.isfinite().all()), None)

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """`model`, `optimizer`, with an average `ema`, with a loss scale `scaler`, with an outer optimizer `outer`:
        free of the number of workers. A collective."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any], *, new_options: bool = False) -> None:
        """Takes a state of any strategy; `optimizer` may be None, to begin without. ShoalError names tensors that do
        not fit the model. new_options: keep the options the optimizer was made with, not those of the state.
        """

    def close(self) -> None:  # noqa: B027  (most rigs hold nothing to close)
        """Gives back what the rig holds."""


MakeOptimizer = Callable[["torch.nn.Module"], "torch.optim.Optimizer"]


class Strategy(Part, frozen=True, kw_only=True):
    """Options that every strategy has."""

    SEAM: ClassVar[str] = "strategies"

    deterministic: bool = False
    """Add shard gradients in one fixed binary tree and pin threads, so that any number of workers up to the shards
    gives the same bits. Costs an exchange of more bytes and no overlap."""
    threads: Annotated[int, Meta(ge=1)] | None = None
    """Threads per worker for the mathematics; absent: cores / workers on the host, or 1 when deterministic."""

    @property
    def same_model(self) -> bool:
        """Whether any number of workers trains the same model."""
        return True

    def misfits(self, recipe: Any) -> list[tuple[str, str]]:
        """(key, text) for all of a recipe that this strategy cannot do, as `faults`."""
        return []

    def check(self, workers: int, servers: int, shards: int) -> None:
        """UsageError when the strategy cannot run with so many workers and servers."""
        if servers:
            raise UsageError(f"--servers {servers}: strategy {self.name} has no servers")
        if workers > shards:
            raise UsageError(
                f"{workers} workers for {shards} shards: a worker takes whole shards; "
                f"use at most {shards} workers, or set shards={workers} (which trains another model) or shards=auto"
            )

    def at_once(self, workers: int) -> int:
        """Shards that so many workers compute at the same time; what `shards: auto` becomes."""
        return workers

    def spread(self, count: int) -> tuple[tuple[str, ...], int]:
        """(recipe changes, worker processes) that have `count` places compute."""
        return (), count

    def takes(self, workers: int, shards: int | str) -> bool:
        """Whether that many workers can be used unasked; shards: the recipe's, or `auto`."""
        return isinstance(shards, str) or workers <= shards

    def roles(self, workers: int, servers: int | None) -> tuple[Role, ...]:
        """What to start for so many workers, without the commands; servers: None where nobody said how many."""
        from shoal.launch.job import Role

        return (Role("worker", workers, ()),)

    def join(self, world: World | None, device: torch.device, *, listen_fd: int | None = None) -> Gang:
        """The gang of this process's world; listen_fd as for `step.gang.join`."""
        from shoal.step.gang import join

        return self.seated(join(world, device, listen_fd=listen_fd))

    def seated(self, gang: Gang) -> Gang:
        """The same gang, by whose `place` data is shared out as this strategy needs it."""
        return gang

    @abstractmethod
    def rig(
        self,
        model: torch.nn.Module,
        make_optimizer: MakeOptimizer,
        task: Task,
        precision: Precision,
        gang: Gang,
        spec: RigSpec,
    ) -> Rig:
        """Sets up a model that has equal weights on every rank. Every rank calls it."""
