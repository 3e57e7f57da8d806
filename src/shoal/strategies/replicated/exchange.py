"""Exchange: how the gradients and buffers of all workers become one sum. Local, bucketed (DDP) or in tree order."""

from __future__ import annotations

import inspect
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shoal.base.tree import TreeSum, cover
from shoal.data.batches import Batch
from shoal.data.order import share
from shoal.step.gang import Gang, Pending
from shoal.step.scaling import Scaler
from shoal.step.stopwatch import EXCHANGE
from shoal.strategies.replicated.buffers import Buffers
from shoal.strategies.replicated.gradients import FlatGradients
from shoal.strategies.replicated.hooks import Hook, Whole

_ASKS = 2
"""Values of `ask` other than 0."""
_PIECE = 1 << 22
"""Numbers exchanged at a time in tree order; bounds the memory for the other workers' partial sums."""


class Exchange(ABC):
    """Between a worker's backward passes and the optimizer's step. One step: for each of this worker's batches
    `before_forward`, `after_forward`, `after_backward`; then `finish`."""

    may_overflow = ""
    """How finite gradients may become infinite on the way, if they may."""
    together = True
    """Whether the step under way is one of all workers, so that they meet in `finish`."""

    def __init__(self, gang: Gang) -> None:
        self.gang = gang
        self.scaler = Scaler()
        """Of the rig; `finish` leaves the gradient without it."""
        self.bytes_sent = 0
        self.gradients: list[torch.Tensor] = []
        """Flat tensors that hold the summed gradient after `finish`; parameters' `.grad` are views of them."""

    @abstractmethod
    def attach(self, model: nn.Module, buffers: Buffers) -> Callable[[torch.Tensor], torch.Tensor]:
        """Takes the model; returns what to call for a training forward pass."""

    def before_forward(self, batch: Batch, last: bool) -> None:  # noqa: B027  (most exchanges have nothing to do here)
        """When a batch is about to be computed; `last` of this worker's in the step."""

    @abstractmethod
    def after_forward(self, batch: Batch, last: bool, ask: int) -> None:
        """Between the forward and the backward pass, when the batch's buffers are known."""

    def after_backward(self, batch: Batch) -> None:  # noqa: B027  (most exchanges have nothing to do here)
        """When the batch's gradients are known."""

    @abstractmethod
    def finish(self, ask: int) -> int:
        """Ends the step: gradients and buffers are the sums over all workers. Returns the largest ask of any."""

    def skipped(self) -> None:  # noqa: B027  (most exchanges remember nothing)
        """The sum was not finite, and all workers skip the step."""

    def norm(self) -> torch.Tensor:
        """2-norm of the whole gradient, after `finish`."""
        flats = self.gradients
        return torch.stack([flat.norm() for flat in flats]).norm() if len(flats) > 1 else flats[0].norm()

    def _unscale(self, gradient: torch.Tensor) -> None:
        """Takes the loss scale out of a gradient, in place."""
        if self.scaler.scale != 1:
            gradient.mul_(1 / self.scaler.scale)

    def _sent(self, tensor: torch.Tensor) -> None:
        """Counts a ring all-reduce: 2 (n-1)/n of the tensor leave each worker."""
        n = self.gang.num_ranks
        self.bytes_sent += 2 * (n - 1) * tensor.numel() * tensor.element_size() // n


def asks_row(ask: int, device: torch.device) -> torch.Tensor:
    row = torch.zeros(_ASKS, dtype=torch.float64, device=device)
    if ask:
        row[ask - 1] = 1
    return row


def largest_ask(asks: torch.Tensor) -> int:
    asked = torch.nonzero(asks).flatten().tolist()
    return max(asked) + 1 if asked else 0


class Local(Exchange):
    """One worker: gradients add up where they are."""

    def attach(self, model: nn.Module, buffers: Buffers) -> Callable[[torch.Tensor], torch.Tensor]:
        self._buffers = buffers
        self._flat = FlatGradients(model.parameters()).flat
        self.gradients = [self._flat]
        self._sums: torch.Tensor | None = None
        return model

    def after_forward(self, batch: Batch, last: bool, ask: int) -> None:
        if self._sums is None:
            self._flat.zero_()
            self._sums = self._buffers.leaf(batch)
        else:
            self._sums += self._buffers.leaf(batch)

    def finish(self, ask: int) -> int:
        assert self._sums is not None, "a step without a batch"
        self._unscale(self._flat)
        self._buffers.take(self._sums)
        self._sums = None
        return ask


class Summed(Local):
    """Gradients add up where they are; what the workers have is added, whole, when the step ends."""

    def finish(self, ask: int) -> int:
        if self._sums is None:  # this worker had no images in the step
            self._flat.zero_()
            self._sums = torch.zeros(self._buffers.size, dtype=torch.float64, device=self.gang.device)
        self._unscale(self._flat)
        side = torch.cat([self._sums, asks_row(ask, self.gang.device)])
        self._sums = None
        for tensor in (side, self._flat):
            self.gang.sum(tensor)
            self._sent(tensor)
        self._buffers.take(side[: self._buffers.size])
        return largest_ask(side[self._buffers.size :])


class Bucketed(Exchange):
    """torch's DistributedDataParallel: buckets travel while the backward pass goes on, buffers and asks beside them."""

    def __init__(
        self, gang: Gang, *, bucket_mb: float | None, unused_parameters: bool, hook: Hook | None = None
    ) -> None:
        super().__init__(gang)
        self._bucket_mb, self._unused = bucket_mb, unused_parameters
        self._group = getattr(gang, "group", None)
        self._hook = hook or Whole(gang.num_ranks, self._group)
        self.may_overflow = self._hook.may_overflow

    def attach(self, model: nn.Module, buffers: Buffers) -> Callable[[torch.Tensor], torch.Tensor]:
        self._model, self._buffers = model, buffers
        # torch 2.13 renamed the option; buffers are ours to exchange either way.
        named = inspect.signature(DistributedDataParallel.__init__).parameters
        no_buffers = "forward_sync_buffers" if "forward_sync_buffers" in named else "broadcast_buffers"
        cuda = self.gang.device.type == "cuda"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self._ddp = DistributedDataParallel(
                model,
                process_group=self._group,
                device_ids=[self.gang.device.index or 0] if cuda else None,
                bucket_cap_mb=self._bucket_mb,  # type: ignore[arg-type]
                find_unused_parameters=self._unused,
                gradient_as_bucket_view=True,
                **{no_buffers: False},  # type: ignore[arg-type]
            )
        # Weakly, or the two would hold each other for ever: DDP keeps its hook where no garbage collector looks.
        own = weakref.WeakMethod(self._sum_bucket)
        self._ddp.register_comm_hook(None, lambda _, bucket: own()(bucket))  # type: ignore[arg-type,misc]
        self._side: torch.Tensor | None = None
        self._pending = Pending()
        self._began = self._shared = False
        return self._forward

    def _sum_bucket(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        self.gradients.append(buffer)
        self._unscale(buffer)
        before = self._hook.bytes_sent
        if bucket.is_last():  # from here on the backward pass only waits for the buckets
            self.gang.watch.to(EXCHANGE)
        future = self._hook.sum(bucket)
        self.bytes_sent += self._hook.bytes_sent - before
        return future

    def skipped(self) -> None:
        self._hook.forget()

    def before_forward(self, batch: Batch, last: bool) -> None:
        self._shared = last and batch.all_busy

    def _forward(self, inputs: torch.Tensor) -> torch.Tensor:
        # DDP is kept out of what it does not exchange: even under no_sync its second forward pass agrees on new buckets
        # with all workers, of which some may have no images in the step.
        return self._ddp(inputs) if self._shared else self._model(inputs)

    def _begin(self) -> None:
        if not self._began:
            self._began = True
            self.gradients = []
            self._model.zero_grad(set_to_none=True)
            self._side = torch.zeros(self._buffers.size + _ASKS, dtype=torch.float64, device=self.gang.device)

    def after_forward(self, batch: Batch, last: bool, ask: int) -> None:
        self._begin()
        assert self._side is not None
        self._side[: self._buffers.size] += self._buffers.leaf(batch)
        if last:
            self._send_side(ask)

    def _send_side(self, ask: int) -> None:
        assert self._side is not None
        self._side[self._buffers.size :] = asks_row(ask, self._side.device)
        self._sent(self._side)
        self._pending = self.gang.sum_later(self._side)

    def finish(self, ask: int) -> int:
        if not self._began:  # this worker had no images in the step
            self._begin()
            self._send_side(ask)
        if not self._shared:
            self._sum_by_hand()
        self._pending.wait()
        assert self._side is not None
        self._buffers.take(self._side[: self._buffers.size])
        asked = largest_ask(self._side[self._buffers.size :])
        self._began = self._shared = False
        return asked

    def _sum_by_hand(self) -> None:
        """For a short batch that leaves workers without images, which DDP would wait for in vain."""
        held = {p: p.grad for p in self._model.parameters() if p.requires_grad}
        flat = FlatGradients(held)
        for parameter, grad in held.items():
            if grad is not None:
                parameter.grad.copy_(grad)  # type: ignore[union-attr]
        self._unscale(flat.flat)
        self.gang.sum(flat.flat)
        self._sent(flat.flat)
        self.gradients = [flat.flat]


class Tree(Exchange):
    """Shard gradients are kept apart and added in one fixed binary tree: the same bits for any number of workers."""

    def __init__(self, gang: Gang, shards: int) -> None:
        super().__init__(gang)
        self._shards = shards

    def attach(self, model: nn.Module, buffers: Buffers) -> Callable[[torch.Tensor], torch.Tensor]:
        for tensor in [*model.parameters(), *model.buffers()]:
            self.gang.broadcast(tensor.detach())
        self._buffers = buffers
        self._flat = FlatGradients(model.parameters()).flat
        self._sizes = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
        self.gradients = [self._flat]
        self._began = False
        self._leaf = torch.zeros(0)
        self._trees = [TreeSum(self._shards, lambda left, right: left.add_(right)) for _ in range(2)]
        return model

    def after_forward(self, batch: Batch, last: bool, ask: int) -> None:
        assert len(batch.shards) == 1, "merged shards have no order of addition"
        self._flat.zero_()
        self._leaf = self._buffers.leaf(batch)

    def after_backward(self, batch: Batch) -> None:
        shard = batch.shards[0][0]
        self._unscale(self._flat)
        for tree, leaf in zip(self._trees, (self._flat.clone(), self._leaf), strict=True):
            tree.put((shard, shard + 1), leaf)
        self._filled = batch.num_shards
        self._began = True

    def norm(self) -> torch.Tensor:
        # Of each tensor first, one after another: the bits do not depend on where the gradient is cut.
        squares = torch.stack([piece.double().square().sum() for piece in self._flat.split(self._sizes)])
        return squares.cumsum(0)[-1].sqrt().to(self._flat.dtype)

    def finish(self, ask: int) -> int:
        head = self._agree(self._head(ask))
        filled = int(head[-1] / head[-2]) if head[-2] else 0
        for shard in share(self._shards, *self.gang.place):
            if shard >= filled:
                for tree in self._trees:
                    tree.put((shard, shard + 1), None)
        gradient, buffers = self._trees
        self._sum_gradient(gradient, filled)
        self._buffers.take(self._sum(buffers, filled, self._buffers.size, torch.float64))
        self._began = False
        return largest_ask(head[:-2])

    def _head(self, ask: int) -> torch.Tensor:
        """Asks; 1 and the number of shards that have images: a worker without any hears it from the others."""
        told = torch.tensor([1.0, self._filled] if self._began else [0.0, 0.0], dtype=torch.float64)
        return torch.cat([asks_row(ask, self.gang.device), told.to(self.gang.device)])

    def _agree(self, head: torch.Tensor) -> torch.Tensor:
        self.gang.sum(head)
        return head

    def _sum_gradient(self, tree: TreeSum, filled: int) -> None:
        """Makes the workers' partial sums one gradient."""
        self._flat.copy_(self._sum(tree, filled, len(self._flat), self._flat.dtype))

    def _sum(self, tree: TreeSum, filled: int, size: int, kind: torch.dtype) -> torch.Tensor:
        place, num_places = self.gang.place
        if num_places == 1:
            total = tree.take()
            assert total is not None
            return total
        nodes_of = [
            cover(self._shards, (taken := share(self._shards, other, num_places)).start, taken.stop)
            for other in range(num_places)
        ]
        own = nodes_of[place]
        slots = max(len(nodes) for nodes in nodes_of)
        total = torch.empty(size, dtype=kind, device=self.gang.device)
        partial = dict(tree.partial)
        tree.partial.clear()
        for low in range(0, size, _PIECE):
            piece = slice(low, min(low + _PIECE, size))
            held = torch.zeros(slots, piece.stop - low, dtype=kind, device=self.gang.device)
            for slot, node in enumerate(own):
                if (value := partial.get(node)) is not None:
                    held[slot] = value[piece]
            self.bytes_sent += held.numel() * held.element_size() * (self.gang.num_ranks - 1)
            for rank, rows in enumerate(self.gang.gather(held)):
                for slot, node in enumerate(nodes_of[rank]):
                    tree.put(node, rows[slot] if node[0] < filled else None)
            total[piece] = tree.take()  # type: ignore[assignment]
        return total
