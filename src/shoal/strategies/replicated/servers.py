"""PsRig: every worker holds the model, servers hold the optimizer; gradients are pushed there, weights pulled back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shoal.base.tree import TreeSum
from shoal.data.batches import Batch
from shoal.kvstore.client import Client
from shoal.kvstore.layout import Layout, Terms
from shoal.kvstore.updater import describe, elementwise
from shoal.models.weights import check_fit
from shoal.step.precision import Precision
from shoal.step.served import Served
from shoal.step.stopwatch import EXCHANGE, UPDATE
from shoal.step.task import Task
from shoal.strategies import Applied, MakeOptimizer, Resliced, RigSpec
from shoal.strategies.replicated.buckets import Buckets
from shoal.strategies.replicated.buffers import Buffers
from shoal.strategies.replicated.exchange import Exchange, Tree, asks_row, largest_ask
from shoal.strategies.replicated.gradients import FlatGradients
from shoal.strategies.replicated.pace import Pace
from shoal.strategies.replicated.rig import ReplicatedRig, copy_state


class Pushed(Exchange):
    """Gradients add up where they are and are pushed as the step's last backward pass makes them; buffers, asks and the
    step's number travel beside them."""

    gang: Served
    step = -1
    """Of what is being computed; a worker without images hears it from the others."""

    def attach(self, model: nn.Module, buffers: Buffers) -> Callable[[torch.Tensor], torch.Tensor]:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._buffers = buffers
        self._sums: torch.Tensor | None = None
        return model

    def begin(self, client: Client) -> None:
        """When the servers know the parameters: gradients lie where they are pushed from, if they are on the host."""
        self._client = client
        here = self.gang.device.type == "cpu"
        self._flat = FlatGradients(self._parameters, client.gradient if here else None).flat
        self.gradients = [self._flat]
        self._host = self._flat if here else torch.empty_like(self._flat, device="cpu", pin_memory=True)
        self._buckets = Buckets(self._parameters, self._push if here else self._push_from_device)

    def after_forward(self, batch: Batch, last: bool, ask: int) -> None:
        if self._sums is None:
            self._flat.zero_()
            self._sums = self._buffers.leaf(batch)
        else:
            self._sums += self._buffers.leaf(batch)
        if last:
            self._buckets.arm()

    def _push(self, low: int, high: int) -> None:
        self._unscale(self._flat[low:high])
        self._client.push(low, self._flat[low:high])

    def _push_from_device(self, low: int, high: int) -> None:
        """The copy goes on beside the backward pass, and the link's thread waits for it."""
        self._unscale(self._flat[low:high])
        host = self._host[low:high]
        host.copy_(self._flat[low:high], non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        self._client.push(low, host, ready=copied.synchronize)

    def finish(self, ask: int) -> int:
        busy, size = self._sums is not None, self._buffers.size
        self._buckets.flush()
        sums = self._sums if self._sums is not None else torch.zeros(size, dtype=torch.float64)
        self._sums = None
        side = torch.cat([sums.cpu(), asks_row(ask, torch.device("cpu")), _told(busy, self.step)])
        self.gang.sum(side)
        self._buffers.take(side[:size].to(self.gang.device))
        self.step = _agreed(side[-2:], self.step)
        return largest_ask(side[size:-2])


class PushedTree(Tree):
    """Partial sums are pushed with their place in the tree, and added there in its order."""

    gang: Served
    step = -1

    def begin(self, client: Client) -> None:
        self._client = client

    def _sum_gradient(self, tree: TreeSum, filled: int) -> None:
        partial = dict(tree.partial)
        tree.partial.clear()
        for node, value in partial.items():
            if value is not None:
                self._client.push(0, value.cpu(), node=node)

    def _head(self, ask: int) -> torch.Tensor:
        """As the tree's own, with the step's number in front."""
        return torch.cat([_told(self._began, self.step), super()._head(ask)])

    def _agree(self, head: torch.Tensor) -> torch.Tensor:
        head = super()._agree(head)
        self.step = _agreed(head[:2], self.step)
        return head[2:]


def _told(busy: bool, step: int) -> torch.Tensor:
    """Who has images knows which step it is."""
    return torch.tensor([1.0, step] if busy else [0.0, 0.0], dtype=torch.float64)


def _agreed(told: torch.Tensor, guess: int) -> int:
    """guess: where all who had images have died."""
    return int(told[1] / told[0]) if told[0] else guess


class PsRig(ReplicatedRig):
    """The step of a synchronous round: push, agree on buffers, commit, pull."""

    _gang: Served

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        task: Task,
        precision: Precision,
        gang: Served,
        spec: RigSpec,
        exchange: Pushed | PushedTree,
        terms: Terms,
    ) -> None:
        super().__init__(model, make_optimizer, task, precision, gang, spec, exchange)
        named = [(name, held) for name, held in self.model.named_parameters() if held.requires_grad]
        pushes = spec.shards if self.asynchronous else 1
        self._pace = Pace(describe(self.optimizer, [held for _, held in named]), pushes, gang.num_ranks)
        described = self._pace.described
        self._layout_of = Layout.of(named, whole=terms.shards is not None or not elementwise(described))
        self._weights = _flattened(self._layout_of, [held for _, held in named])
        self._client, self._pushing = gang.client, exchange
        self._host = self._weights if gang.device.type == "cpu" else self._weights.cpu().pin_memory()
        start = self._host.clone()
        version = self._client.init(self._host, self._layout_of, described, terms)
        exchange.begin(self._client)
        if gang.began or version:
            self._host.copy_(start)
            self._client.load(self._host, None)
        gang.began = True
        self._arrived()

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]
        return self._client.bytes_sent

    @torch.no_grad()
    def apply(self, lr: float, images: int) -> Applied:
        self._pushing.step = self._batches[0].step if self._batches else self._step + 1
        self._gang.watch.to(EXCHANGE)
        asked = self._pushing.finish(self.ask)
        self._step = step = self._pushing.step
        done = self._client.commit(step, lr=lr, clip_norm=self._spec.clip_norm)
        if done.redo:
            self._buffers.undo()
            self._batches.clear()
            self._step -= 1
            raise Resliced
        if not done.applied:
            if self._precision.nonfinite == "stop":
                raise self._error(step, "")
            return self._skip(step, asked)
        self.scaler.stepped()
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        self._client.pull(self._host)
        self._gang.watch.to(UPDATE)
        self._arrived()
        self._follow(images)
        self._batches.clear()
        return Applied(True, asked)

    def _arrived(self) -> None:
        """New weights are on the host."""
        if self._host is not self._weights:
            self._weights.copy_(self._host, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state["optimizer"] = held = self._pace.to_step(self._client.state())
        for group, mine in zip(held["param_groups"], self.optimizer.param_groups, strict=True):
            group["lr"] = mine["lr"]  # servers are told the rate of each step, and keep none
        self._client.barrier()  # nobody steps on while another still reads
        return state

    def load_state_dict(self, state: dict[str, Any], *, new_options: bool = False) -> None:
        check_fit(self.model, state["model"])
        self._load_scaler(state)
        with torch.no_grad():
            copy_state(self.model, state["model"])
            if self._average is not None:
                copy_state(self._average.model, state.get("ema", state["model"]))
            if self._host is not self._weights:
                self._host.copy_(self._weights)
        optimizer = state.get("optimizer")
        if optimizer is not None and new_options:
            groups = zip(optimizer["param_groups"], self.optimizer.param_groups, strict=True)
            kept = [{**old, **{key: new[key] for key in self.optimizer.defaults}} for old, new in groups]
            optimizer = {**optimizer, "param_groups": kept}
        if optimizer is not None:
            for group, held in zip(self.optimizer.param_groups, optimizer["param_groups"], strict=True):
                group["lr"] = held["lr"]
            optimizer = self._pace.to_push(optimizer)
        self._client.load(self._host, optimizer)
        self._arrived()


@torch.no_grad()
def _flattened(layout: Layout, parameters: list[nn.Parameter]) -> torch.Tensor:
    """The parameters as one tensor, of which they are views from now on."""
    flat = torch.empty(layout.size, dtype=layout.kind, device=parameters[0].device)
    for number, parameter in enumerate(parameters):
        view = layout.view(flat, number)
        view.copy_(parameter)
        parameter.data = view
    return flat
