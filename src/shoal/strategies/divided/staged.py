"""StagedRig: each worker has one stage of the model, and shards go through the stages one behind the other."""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

from shoal.data.batches import Batch
from shoal.models.weights import check_fit
from shoal.step import nonfinite, norm, randomness
from shoal.step.inputs import Inputs
from shoal.step.meters import StepOutput
from shoal.step.precision import Precision
from shoal.step.stopwatch import COMPUTE, EXCHANGE, TRANSFER
from shoal.step.task import Task
from shoal.strategies import MakeOptimizer, RigSpec
from shoal.strategies.divided.carving import run
from shoal.strategies.divided.column import Remembered, exchange_for
from shoal.strategies.divided.cutting import Cuts, cut
from shoal.strategies.divided.grid import Grid
from shoal.strategies.divided.skeleton import Skeleton
from shoal.strategies.divided.stage import Draws, Slot, Stage, passed_bytes
from shoal.strategies.replicated.owned import Owned
from shoal.strategies.replicated.rig import ReplicatedRig, explained

_MOST_UNSENT = 2
"""Validation chunks that a stage may be ahead of the next one."""


class _Shown(Exception):
    """Carries what a task shows the model."""

    def __init__(self, inputs: torch.Tensor) -> None:
        super().__init__()
        self.inputs = inputs


def _show(inputs: torch.Tensor) -> torch.Tensor:
    raise _Shown(inputs)


class StagedRig(ReplicatedRig):
    """Shards are the micro-batches, so statistics and randomness belong to them as ever. The forward passes of a step
    begin with its last batch."""

    _gang: Grid
    _buffers: Remembered

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        task: Task,
        precision: Precision,
        grid: Grid,
        spec: RigSpec,
        *,
        gpipe: bool,
        deterministic: bool,
    ) -> None:
        layout = torch.channels_last if spec.channels_last else torch.contiguous_format
        model = model.to(device=grid.device, dtype=precision.dtype(), memory_format=layout)  # type: ignore[call-overload]
        for tensor in [*model.parameters(), *model.buffers()]:
            grid.broadcast(tensor.detach())
        self._cuts = _cuts(model, precision, grid, spec)
        self._skeleton = Skeleton(model)
        whole = make_optimizer(model)
        trained = [name for name, held in model.named_parameters() if held.requires_grad]
        stretch = self._cuts.carve(model, grid.stage, spec.shape)
        own = {id(held): name for name, held in stretch.named_parameters()}
        owned = Owned(whole, set(own), grid.row, "strategy pipeline")
        owned.forget_others()
        places = [trained.index(name) for name, held in stretch.named_parameters() if held.requires_grad]
        exchange = exchange_for(grid, spec.shards if deterministic else None, places, len(trained))
        super().__init__(stretch, lambda _: owned, task, precision, grid, spec, exchange)  # type: ignore[arg-type, return-value]
        self._gpipe = gpipe
        self._draws = Draws(grid) if self._cuts.draws else None
        self._schedules: dict[tuple[int, int], Schedule1F1B | ScheduleGPipe] = {}
        self._outputs: list[StepOutput] = []
        self._unsent: list[tuple[dist.Work | None, torch.Tensor]] = []
        self._passed = 0
        names = [boundary.name for boundary in self._cuts.boundaries]
        times = ", ".join(f"{seconds * 1e3:.1f}" for seconds in self._cuts.seconds)
        self.told = (f"{grid.stages} stages, cut before {', '.join(names)} ({times} ms for a micro-batch alone)",)

    def _make_buffers(self) -> Remembered:
        return Remembered(self.model, average=self._spec.norm == "shard")

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]
        return super().bytes_sent + self._passed

    # A step

    def forward_backward(self, batch: Batch, *, last: bool) -> StepOutput:
        self._gang.watch.to(TRANSFER)
        batch = batch.to(self._gang.device)
        self._batches.append(batch)
        rows = len(batch.images) if self._gang.speaks else 0
        kind = {"dtype": self._precision.dtype(), "device": self._gang.device}
        self._outputs.append(StepOutput(torch.zeros((), **kind), torch.zeros(rows, self._cuts.classes, **kind)))
        output = self._outputs[-1]
        if last:
            self._run()
            self._outputs = []
        return output

    def _run(self) -> None:
        """All micro-batches of the step, forward and back."""
        count, most = len(self._batches), max(len(batch.images) for batch in self._batches)
        if (count, most) not in self._schedules:
            self._schedules[count, most] = self._schedule(count, most)
        numbers = torch.arange(count)
        first, last = self._gang.stage == 0, self._gang.speaks
        with explained(self._batches[0]):
            try:
                self._schedules[count, most].step(
                    *((numbers,) if first else ()), target=numbers if last else None, return_outputs=False
                )
            except RuntimeError as error:  # torch wraps what a stage raises
                raise error.__cause__ or error from None
        sides = passed_bytes(self._cuts, self._gang.stage - 1, most) + passed_bytes(self._cuts, self._gang.stage, most)
        self._passed += count * sides

    def _schedule(self, count: int, most: int) -> Schedule1F1B | ScheduleGPipe:
        """One for each shape of a batch: torch's hold buffers of fixed sizes."""
        slot = Slot(self.model, self._cuts, self._gang, most, self._context)
        stage = Stage(slot, self._cuts, self._gang, lambda number: len(self._batches[number].images), most, self)
        # 1F1B needs as many micro-batches as stages; a short batch may have fewer.
        kind = ScheduleGPipe if self._gpipe or count < self._gang.stages else Schedule1F1B
        return kind(stage, count, loss_fn=self._loss_of, scale_grads=False)

    def _context(self) -> AbstractContextManager:
        return self._precision.context(self._gang.device)

    def _loss_of(self, logits: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        batch, output = self._batches[int(number)], self._outputs[int(number)]
        with self._context():
            loss, logits = self._task.loss(lambda _: logits, self._inputs(batch.images), batch, self._spec.seed)
        output.loss.copy_(loss.detach())
        output.logits.copy_(logits.detach())
        return self._scaled(loss, batch)

    def shown(self, number: int) -> torch.Tensor:
        batch = self._batches[number]
        try:
            with self._context():
                self._task.loss(_show, self._inputs(batch.images), batch, self._spec.seed)
        except _Shown as shown:
            return shown.inputs
        raise RuntimeError("the task does not ask the model")

    def before_forward(self, number: int) -> None:
        self._gang.watch.to(COMPUTE)
        self._buffers.begin_shard()
        if self._draws is not None and self._gang.stage > 0:
            self._draws.take()
        else:
            randomness.seed_for(self._batches[number], self._spec.seed)

    def after_forward(self, number: int) -> None:
        if self._draws is not None and not self._gang.speaks:
            self._draws.hand_on()
        self._buffers.keep_leaf(self._batches[number])
        self._waits()

    def before_backward(self, number: int) -> None:
        self._gang.watch.to(COMPUTE)
        self._exchange.after_forward(self._batches[number], number + 1 == len(self._batches), self.ask)

    def after_backward(self, number: int) -> None:
        self._exchange.after_backward(self._batches[number])
        self._waits()

    def _waits(self) -> None:
        """From here on for other stages, but where the last one has a loss to compute."""
        if self._gang.stages > 1:
            self._gang.watch.to(EXCHANGE)

    # A validation

    @torch.no_grad()
    def evaluate(self, batch: Batch, *, averaged: bool = False) -> torch.Tensor:
        """Only the last stage's are logits; the others go on to the next chunk."""
        grid, batch = self._gang, batch.to(self._gang.device)
        model = self._average.model if averaged and self._average is not None else self.model
        if grid.stage == 0:
            x = self._inputs(batch.images)
        else:
            boundary = self._cuts.boundaries[grid.stage - 1]
            x = torch.empty(len(batch.images), *boundary.shape, dtype=boundary.dtype, device=grid.device)
            dist.recv(x, grid.rank - 1, group=grid.group)
            x = x.contiguous(memory_format=torch.channels_last) if boundary.channels_last else x
        model.eval()
        try:
            with self._context():
                y = run(model, x)
        finally:
            self._train()
        if grid.speaks:
            return y
        y = y.contiguous()
        while len(self._unsent) >= _MOST_UNSENT:
            work, _ = self._unsent.pop(0)
            if work is not None:
                work.wait()
        self._unsent.append((dist.isend(y, grid.rank + 1, group=grid.group), y))
        return torch.zeros(len(batch.images), self._cuts.classes, dtype=self._precision.dtype(), device=grid.device)

    # The whole

    @property
    def num_parameters(self) -> int:
        return sum(held.numel() for held in self._skeleton.model.parameters() if held.requires_grad)

    def broken(self) -> str | None:
        mine = {name for name, held in self.model.state_dict().items() if not held.isfinite().all()}
        names = list(self._skeleton.model.state_dict())
        found = torch.tensor([name in mine for name in names], dtype=torch.float64, device=self._gang.device)
        self._gang.sum(found)
        return next((name for name, mark in zip(names, found.tolist(), strict=True) if mark), None)

    def _culprit(self) -> str | None:
        whole = self._skeleton.filled(self._whole(self.model), self._gang.device)
        whole.train()
        if self._spec.norm == "frozen":
            norm.freeze(whole)
        return nonfinite.first(whole, self._batches, partial(self._again, net=whole))

    def _whole(self, model: nn.Module) -> dict[str, torch.Tensor]:
        file = io.BytesIO()
        torch.save(dict(model.state_dict()), file)
        found: dict[str, torch.Tensor] = {}
        for told in self._gang.row.gather_bytes(file.getvalue()):
            found |= torch.load(io.BytesIO(told), weights_only=True, map_location=self._gang.device)
        return {name: found[name] for name in self._skeleton.model.state_dict()}

    def _check_fit(self, state: dict[str, torch.Tensor]) -> None:
        check_fit(self._skeleton.model, state)


def _cuts(model: nn.Module, precision: Precision, grid: Grid, spec: RigSpec) -> Cuts:
    """Measured by the first worker; the cut is no part of the trajectory."""
    told = None
    if grid.rank == 0:
        layout = torch.channels_last if spec.channels_last else torch.contiguous_format
        normalise = Inputs(spec.mean, spec.std, precision.dtype(), grid.device, layout)
        images = torch.randint(0, 256, (max(2, -(-spec.batch // spec.shards)), *spec.shape), dtype=torch.uint8)

        def train(model: nn.Module) -> None:
            model.train()
            if spec.norm == "frozen":
                norm.freeze(model)

        cuts = cut(model, grid.stages, normalise(images.to(grid.device)), lambda: precision.context(grid.device), train)
        told = cuts.to_bytes()
    return Cuts.from_bytes(grid.broadcast_bytes(told))
