"""LocalRig: every worker steps by its own images, and now and then all take the mean of their weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from shoal.data.batches import Batch
from shoal.step.gang import Gang
from shoal.step.precision import Precision
from shoal.step.stopwatch import EXCHANGE, UPDATE
from shoal.step.task import Task
from shoal.strategies import Applied, MakeOptimizer, RigSpec
from shoal.strategies.replicated.exchange import Summed, asks_row, largest_ask
from shoal.strategies.replicated.rig import ReplicatedRig


class Own(Summed):
    """As `Summed` while workers are together; apart, each keeps the mean over its own images."""

    images = 0
    """Of this worker in the step under way."""

    def after_forward(self, batch: Batch, last: bool, ask: int) -> None:
        super().after_forward(batch, last, ask)
        self.images += sum(size for _, size in batch.shards)
        self._share = self.images / batch.count_global

    def finish(self, ask: int) -> int:
        self.images = 0
        if self.together:
            return super().finish(ask)
        assert self._sums is not None, "a step without a batch"
        self._unscale(self._flat)
        self._flat.div_(self._share)
        self._buffers.take_own(self._sums / self._share)
        self._sums = None
        return 0

    def mean(self, flat: torch.Tensor, part: float, ask: int) -> int:
        """Sets `flat` to the mean over workers, by their parts, in place; to itself where no part is above 0."""
        device = self.gang.device
        side = torch.cat([torch.tensor([part], dtype=torch.float64, device=device), asks_row(ask, device)])
        summed = flat * part
        for tensor in (side, summed):
            self.gang.sum(tensor)
            self._sent(tensor)
        if side[0] > 0:
            flat.copy_(summed / side[0])
        return largest_ask(side[1:])


class LocalRig(ReplicatedRig):
    """Between meetings workers share nothing: not the gradient, not a skipped step, not a wish to stop."""

    _exchange: Own

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        task: Task,
        precision: Precision,
        gang: Gang,
        spec: RigSpec,
        exchange: Own,
        *,
        every: int,
        after: float,
        outer_lr: float,
        outer_momentum: float,
    ) -> None:
        """every: steps between meetings. after: images until which workers agree in every step."""
        super().__init__(model, make_optimizer, task, precision, gang, spec, exchange)
        self._every, self._after = every, after
        self._parameters = [held for held in self.model.parameters() if held.requires_grad]
        for tensor in [*self.model.parameters(), *self.model.buffers()]:
            gang.broadcast(tensor.detach())
        self._apart = 0
        """Steps since the last meeting."""
        self._images = self._own = 0
        """Since the last meeting: of all workers; of this one, that it learned from."""
        self._outer: torch.optim.SGD | None = None
        if (outer_lr, outer_momentum) != (1.0, 0.0):
            start = nn.Parameter(self._flat())
            self._outer = torch.optim.SGD([start], lr=outer_lr, momentum=outer_momentum, nesterov=outer_momentum > 0)
        self._met_at()

    def _flat(self) -> torch.Tensor:
        return torch.cat([held.detach().reshape(-1) for held in self._parameters])

    @torch.no_grad()
    def _met_at(self) -> None:
        """Weights are equal everywhere now; the outer optimizer goes on from them."""
        if self._outer is not None:
            self._outer.param_groups[0]["params"][0].copy_(self._flat())

    def apply(self, lr: float, images: int) -> Applied:
        exchange = self._exchange
        exchange.together = self.seen < self._after
        if exchange.together:
            applied = super().apply(lr, images)
            self._met_at()
            return applied
        own, applied = exchange.images, Applied(True, 0)
        if own:
            applied = super().apply(lr, images)
        else:  # a short batch left this worker without images: it stands still
            self._step += 1
        self._apart, self._images = self._apart + 1, self._images + images
        self._own += own if applied.stepped else 0
        asked = self._meet() if self._apart >= self._every else 0
        return Applied(applied.stepped, asked)

    def _follow(self, images: int) -> None:
        if self._exchange.together:  # else at the meeting
            super()._follow(images)

    def meet(self) -> None:
        if self._apart:
            self._meet()

    @torch.no_grad()
    def _meet(self) -> int:
        """Returns the largest ask of any worker."""
        self._gang.watch.to(EXCHANGE)
        mean = self._flat()
        asked = self._exchange.mean(mean, self._own / self._images, self.ask)
        self._buffers.agree(self._gang, self._own)
        self._gang.watch.to(UPDATE)
        if self._outer is not None:
            start = self._outer.param_groups[0]["params"][0]
            start.grad = start.detach() - mean
            self._outer.step()
            mean = start.detach()
        low = 0
        for held in self._parameters:
            held.copy_(mean[low : low + held.numel()].view(held.shape))
            low += held.numel()
        if self._average is not None:
            self._average.follow(self.model, self._images)
        self._apart = self._images = self._own = 0
        return asked

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's is the mean of the workers' own, who keep theirs."""
        state = super().state_dict()
        state["optimizer"] = {**state["optimizer"], "state": self._mean_state(state["optimizer"]["state"])}
        if self._outer is not None:
            held = self._outer.state_dict()["state"].get(0, {})
            state["outer"] = {key: value for key, value in held.items() if value is not None}
        return state

    def _mean_state(self, held: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        n, device = self._gang.num_ranks, self._gang.device
        count = torch.tensor([bool(held)], dtype=torch.int64, device=device)
        self._gang.sum(count)
        if int(count) < n:  # somebody has not made a step yet
            return {}
        mean: dict[int, dict[str, Any]] = {}
        for number, own in held.items():
            mean[number] = dict(own)
            for key, value in own.items():
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    summed = value.to(device, copy=True)
                    self._gang.sum(summed)
                    mean[number][key] = (summed / n).to(value.device)
        return mean

    def load_state_dict(self, state: dict[str, Any], *, new_options: bool = False) -> None:
        super().load_state_dict(state, new_options=new_options)
        self._apart = self._images = self._own = 0
        self._met_at()
        if self._outer is not None and state.get("outer"):
            self._outer.load_state_dict({**self._outer.state_dict(), "state": {0: state["outer"]}})
