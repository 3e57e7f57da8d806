"""ScatteredRig: every worker holds a piece of every tensor, and gathers a unit's others while it computes with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from shoal.data.batches import Batch
from shoal.data.order import share
from shoal.models.weights import check_fit
from shoal.step import nonfinite
from shoal.step.gang import Gang
from shoal.step.inputs import Inputs
from shoal.step.precision import Precision
from shoal.step.task import Task
from shoal.strategies import Applied, MakeOptimizer, RigSpec
from shoal.strategies.divided.pieces import Piecewise, piece_of, whole_of
from shoal.strategies.divided.skeleton import Skeleton
from shoal.strategies.divided.units import units
from shoal.strategies.replicated.average import local
from shoal.strategies.replicated.buffers import Buffers
from shoal.strategies.replicated.exchange import Exchange, asks_row, largest_ask
from shoal.strategies.replicated.rig import ReplicatedRig


class Scattered(Exchange):
    """FSDP adds the gradients of a pass and hands each worker its piece as the backward pass goes on; buffers and asks
    are added when the step ends."""

    skeleton: Skeleton

    def attach(self, model: nn.Module, buffers: Buffers) -> Callable[[torch.Tensor], torch.Tensor]:
        for tensor in [*model.parameters(), *model.buffers()]:
            self.gang.broadcast(tensor.detach())
        self.units = units(model)
        self._model, self._buffers = model, buffers
        self._sums: torch.Tensor | None = None
        self.skeleton = Skeleton(model)
        self._pass_bytes = scatter(model, self.gang)
        return model

    def before_forward(self, batch: Batch, last: bool) -> None:
        self._begin()

    def _begin(self) -> None:
        if self._sums is None:
            self._model.zero_grad(set_to_none=True)
            self._sums = torch.zeros(self._buffers.size, dtype=torch.float64, device=self.gang.device)
        self.bytes_sent += self._pass_bytes

    def after_forward(self, batch: Batch, last: bool, ask: int) -> None:
        assert self._sums is not None
        self._sums += self._buffers.leaf(batch)

    def blank(self) -> None:
        """A pass without images is about to come, because other workers have more."""
        self._begin()

    def finish(self, ask: int) -> int:
        assert self._sums is not None, "a step without a pass"
        self.gradients = [local(held.grad) for held in self._model.parameters() if held.grad is not None]
        for gradient in self.gradients:
            self._unscale(gradient)
        side = torch.cat([self._sums, asks_row(ask, self.gang.device)])
        self._sums = None
        self.gang.sum(side)
        self._sent(side)
        self._buffers.take(side[: self._buffers.size])
        return largest_ask(side[self._buffers.size :])

    def norm(self) -> torch.Tensor:
        squares = torch.stack([gradient.double().square().sum() for gradient in self.gradients]).sum()
        self.gang.sum(squares)
        return squares.sqrt().to(self.gradients[0].dtype)


def scatter(model: nn.Module, gang: Gang) -> int:
    """Leaves this worker its pieces, in place. Returns the bytes that it sends in one pass."""
    mesh = init_device_mesh(gang.device.type, (gang.num_ranks,))
    for name in [*units(model), ""]:
        fully_shard(model.get_submodule(name), mesh=mesh, reshard_after_forward=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # gradients are parts of the global mean already
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
    # A ring gathers twice (for both passes) and adds once.
    rows = [(-(-len(held) // gang.num_ranks), held) for held in model.parameters()]
    each = sum(count * held[:1].numel() * held.element_size() for count, held in rows)
    return 3 * (gang.num_ranks - 1) * each


class ScatteredRig(ReplicatedRig):
    """As every other data-parallel rig, but that a pass is a collective: all workers make equally many."""

    looks_together = True
    _exchange: Scattered

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        task: Task,
        precision: Precision,
        gang: Gang,
        spec: RigSpec,
    ) -> None:
        whole: dict[str, nn.Parameter] = {}

        def make(model: nn.Module) -> torch.optim.Optimizer:
            whole.update(model.named_parameters())
            return make_optimizer(model)

        # FSDP keeps only tensors in the plain layout.
        exchange = Scattered(gang)
        super().__init__(model, make, task, precision, gang, replace(spec, channels_last=False), exchange)
        layout = torch.channels_last if spec.channels_last else torch.contiguous_format
        self._inputs = Inputs(spec.mean, spec.std, precision.dtype(), gang.device, layout)
        cut = {id(whole[name]): held for name, held in self.model.named_parameters()}
        self.optimizer = Piecewise(self.optimizer, cut, gang)  # type: ignore[assignment]
        whole.clear()
        count = len(exchange.units)
        blocks = f"each of {count} blocks, and the rest" if count else "the whole model (it has no blocks)"
        self.told = (f"gathered for computing, one after another: {blocks}",)
        if self._average is not None:
            scatter(self._average.model, gang)

    def apply(self, lr: float, images: int) -> Applied:
        places = self._gang.place[1]
        filled = min(images, self._spec.shards)
        shares = [share(self._spec.shards, place, places) for place in range(places)]
        most = max(sum(shard < filled for shard in taken) for taken in shares)
        for _ in range(len(self._batches), most if self._streams is None else 1):
            self._blank_pass()
        return super().apply(lr, images)

    def _blank_pass(self) -> None:
        """Gradients of zero, for the other workers' sake. Statistics stay as they are."""
        self._exchange.blank()
        self.model.eval()
        try:
            images = torch.zeros(1, *self._spec.shape, dtype=torch.uint8, device=self._gang.device)
            with self._precision.context(self._gang.device):
                logits = self._computing(self._inputs(images))
            (logits * 0).sum().backward()
        finally:
            self._train()

    @torch.no_grad()  # no inference_mode: FSDP keeps what it gathers into, and this may be the first pass
    def evaluate(self, batch: Batch, *, averaged: bool = False) -> torch.Tensor:
        return self._judge(batch, averaged)

    @property
    def num_parameters(self) -> int:
        return sum(held.numel() for held in self._exchange.skeleton.model.parameters() if held.requires_grad)

    def broken(self) -> str | None:
        names = [name for name, _ in self.model.state_dict().items()]
        marks = [not local(held).isfinite().all() for held in self.model.state_dict().values()]
        found = torch.tensor(marks, dtype=torch.float64, device=self._gang.device)
        self._gang.sum(found)
        return next((name for name, mark in zip(names, found.tolist(), strict=True) if mark), None)

    def _culprit(self) -> str | None:
        whole = self._exchange.skeleton.filled(self._whole(self.model), self._gang.device)
        net = self._precision.computing(whole)
        return nonfinite.first(whole, self._batches, lambda batch: self._again(batch, net))

    def _whole(self, model: nn.Module) -> dict[str, torch.Tensor]:
        shapes = {name: held.shape for name, held in self._exchange.skeleton.model.state_dict().items()}
        return {
            name: whole_of(local(held), shapes[name], self._gang) if isinstance(held, DTensor) else held
            for name, held in model.state_dict().items()
        }

    def _take(self, model: nn.Module, state: dict[str, torch.Tensor]) -> None:
        for name, held in model.state_dict(keep_vars=True).items():
            mine, whole = local(held.detach()), state[name].to(held.device)
            mine.copy_(piece_of(whole, self._gang) if isinstance(held, DTensor) else whole)

    def _check_fit(self, state: dict[str, torch.Tensor]) -> None:
        check_fit(self._exchange.skeleton.model, state)
