"""ReplicatedRig: every worker holds the whole model; an Exchange makes their gradients one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from shoal.base.errors import ShoalError
from shoal.data.batches import Batch
from shoal.models.weights import check_fit
from shoal.step import nonfinite, norm, randomness
from shoal.step.gang import Gang
from shoal.step.inputs import Inputs
from shoal.step.meters import StepOutput
from shoal.step.precision import Precision
from shoal.step.stopwatch import COMPUTE, EXCHANGE, TRANSFER, UPDATE
from shoal.step.task import Task
from shoal.strategies import Applied, MakeOptimizer, Rig, RigSpec
from shoal.strategies.replicated.average import Average
from shoal.strategies.replicated.buffers import Buffers
from shoal.strategies.replicated.exchange import Exchange


class ReplicatedRig(Rig):
    """The step that single, ddp and deterministic training share."""

    def __init__(
        self,
        model: torch.nn.Module,
        make_optimizer: MakeOptimizer,
        task: Task,
        precision: Precision,
        gang: Gang,
        spec: RigSpec,
        exchange: Exchange,
    ) -> None:
        self._layout = torch.channels_last if spec.channels_last else torch.contiguous_format
        self.model = model.to(device=gang.device, dtype=precision.dtype(), memory_format=self._layout)  # type: ignore[call-overload]
        self._task, self._precision, self._gang, self._spec, self._exchange = task, precision, gang, spec, exchange
        self._streams = None
        if spec.norm == "sync":
            norm.synchronise(self.model, gang)
            self._streams = randomness.ShardStreams(self.model)
        self._inputs = Inputs(spec.mean, spec.std, precision.dtype(), gang.device, self._layout)
        self._buffers = self._make_buffers()
        self.optimizer = make_optimizer(self.model)
        self._average = Average(self.model, spec.ema_half_life) if spec.ema_half_life else None
        self._computing = precision.computing(self.model)
        self._judging = precision.computing(self._average.model) if self._average is not None else None
        self.scaler = exchange.scaler = precision.scaler()
        if spec.compile:
            self._computing.compile()
        self._net = exchange.attach(self._computing, self._buffers)
        self._batches: list[Batch] = []
        self._norms: list[tuple[int, torch.Tensor]] = []
        self._step = -1
        self._train()

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]
        return self._exchange.bytes_sent + getattr(self.optimizer, "bytes_sent", 0)

    def _make_buffers(self) -> Buffers:
        return Buffers(self.model, average=self._spec.norm == "shard")

    def _train(self) -> None:
        self.model.train()
        if self._spec.norm == "frozen":
            norm.freeze(self.model)

    def _loss(self, batch: Batch, net: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if self._streams is None:
            randomness.seed_for(batch, self._spec.seed)
            drawing = nullcontext()
        else:
            drawing = self._streams.of(batch, self._spec.seed)
        with self._precision.context(self._gang.device), drawing:
            return self._task.loss(net, self._inputs(batch.images), batch, self._spec.seed)

    def forward_backward(self, batch: Batch, *, last: bool) -> StepOutput:
        self._gang.watch.to(TRANSFER)
        batch = batch.to(self._gang.device)
        self._gang.watch.to(COMPUTE)
        self._batches.append(batch)
        self._buffers.begin_shard()
        self._exchange.before_forward(batch, last)
        with explained(batch):
            loss, logits = self._loss(batch, self._net)
        self._exchange.after_forward(batch, last, self.ask)
        self._scaled(loss, batch).backward()
        self._exchange.after_backward(batch)
        return StepOutput(loss.detach(), logits.detach())

    def _scaled(self, loss: torch.Tensor, batch: Batch) -> torch.Tensor:
        """A batch's part of the global mean, by which gradients are made."""
        mean = loss / batch.count_global
        return mean if self.scaler.scale == 1 else mean * self.scaler.scale

    @torch.no_grad()
    def apply(self, lr: float, images: int) -> Applied:
        self._step = step = self._batches[0].step if self._batches else self._step + 1
        self._gang.watch.to(EXCHANGE if self._exchange.together else UPDATE)
        asked = self._exchange.finish(self.ask)
        self._gang.watch.to(UPDATE)
        length = self._exchange.norm()
        self._norms.append((step, length))
        stop = self._precision.nonfinite == "stop"
        # A CPU knows at once, before the harm is done. A lone device is asked late, so that it need not stand still;
        # with several, the asks of a step are waited for in any case.
        if self._gang.device.type == "cpu" or not stop:
            finite = bool(torch.isfinite(length))
            if not finite and not stop:
                return self._skip(step, asked)
            self.settle()
        self.scaler.stepped()
        if self._spec.clip_norm is not None:
            scale = (self._spec.clip_norm / (length + 1e-6)).clamp(max=1.0)
            for flat in self._exchange.gradients:
                flat.mul_(scale)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        self.optimizer.step()
        self._follow(images)
        self._batches.clear()
        return Applied(True, asked)

    def _follow(self, images: int) -> None:
        """The average, after a step over so many images."""
        if self._average is not None:
            self._average.follow(self.model, images)

    def _skip(self, step: int, asked: int) -> Applied:
        self._norms.clear()
        self._buffers.undo()
        if (reason := self.scaler.exhausted) is not None:
            raise self._error(step, f" ({reason})")
        self.scaler.overflowed()
        self._exchange.skipped()
        self._batches.clear()
        return Applied(False, asked)

    def settle(self) -> None:
        norms, self._norms = self._norms, []
        if norms:
            finite = torch.isfinite(torch.stack([length for _, length in norms])).tolist()
            if not all(finite):
                raise self._error(norms[finite.index(False)][0], "")

    def _error(self, step: int, more: str) -> ShoalError:
        self._buffers.undo()
        # The gradients are everybody's by now; this worker's own tell whether the cause lies here.
        for flat in self._exchange.gradients:
            flat.zero_()
        culprit = self._culprit()
        late = "" if self._batches else " (found after the update: devices report late)"
        advice = nonfinite.ADVICE if self._precision.nonfinite == "stop" else nonfinite.SKIPPED
        if self.scaler.told and not self.scaler.dynamic:
            advice = nonfinite.SCALED
        told = culprit and culprit + more + late
        return nonfinite.error(step, self._gang.process, told, advice, self._exchange.may_overflow)

    def _culprit(self) -> str | None:
        """The first tensor of this worker's batches that is not finite."""
        return nonfinite.first(self.model, self._batches, lambda batch: self._again(batch, self._computing))

    @torch.enable_grad()
    def _again(self, batch: Batch, net: torch.nn.Module) -> torch.Tensor:
        """Loss and gradient of a batch once more, without the other workers' part."""
        loss, _ = self._loss(batch, net)
        self._scaled(loss, batch).backward()
        return loss.detach()

    @torch.inference_mode()
    def evaluate(self, batch: Batch, *, averaged: bool = False) -> torch.Tensor:
        return self._judge(batch, averaged)

    def _judge(self, batch: Batch, averaged: bool) -> torch.Tensor:
        batch = batch.to(self._gang.device)
        net = self._judging if averaged and self._judging is not None else self._computing
        net.eval()
        try:
            with self._precision.context(self._gang.device):
                return net(self._inputs(batch.images))
        finally:
            self._train()

    def state_dict(self) -> dict[str, Any]:
        state = {"model": self._whole(self.model), "optimizer": self.optimizer.state_dict()}
        if self._average is not None:
            state["ema"] = self._whole(self._average.model)
        if self.scaler.told:
            state["scaler"] = self.scaler.state()
        return state

    def _whole(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """The state of the model or of its average, by name. A collective."""
        return model.state_dict()

    def _take(self, model: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
        """Sets the model or its average to a whole state."""
        copy_state(model, state)

    def _check_fit(self, state: dict[str, torch.Tensor]) -> None:
        check_fit(self.model, state)

    def _load_scaler(self, state: dict[str, Any]) -> None:
        if state.get("scaler") is not None:
            self.scaler.load(state["scaler"])

    def load_state_dict(self, state: dict[str, Any], *, new_options: bool = False) -> None:
        self._check_fit(state["model"])
        self._load_scaler(state)
        with torch.no_grad():
            self._take(self.model, state["model"])
            if self._average is not None:
                # A run that had no average so far begins it from the weights.
                self._take(self._average.model, state.get("ema", state["model"]))
        if state.get("optimizer") is not None:
            made = [{key: group[key] for key in self.optimizer.defaults} for group in self.optimizer.param_groups]
            self.optimizer.load_state_dict(state["optimizer"])
            _own_state(self.optimizer)
            if new_options:
                for group, options in zip(self.optimizer.param_groups, made, strict=True):
                    group.update(options)


@contextmanager
def explained(batch: Batch) -> Iterator[None]:
    """Where a batch is computed: says what a recipe can do about it when torch gives up."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ShoalError(
            f"norm: shard: BatchNorm needs more than one value per channel to train on, but a shard of step "
            f"{batch.step} has one image; use fewer shards, drop_last=true, or norm=frozen"
        ) from error


def copy_state(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Into the tensors that are there: they may be views that others hold."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensor.detach().copy_(state[name])


def _own_state(optimizer: torch.optim.Optimizer) -> None:
    """Copies what torch's `load_state_dict` has only borrowed, laid out as the parameters are: the fused kernels walk
    both in memory order and look at no strides, and the state may come from another layout."""
    for parameter, held in optimizer.state.items():
        for key, value in held.items():
            if isinstance(value, torch.Tensor):
                like = parameter if value.shape == parameter.shape else value
                held[key] = torch.empty_like(like, dtype=value.dtype, device=value.device).copy_(value)
