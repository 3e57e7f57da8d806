"""Trainer: one run, as time sees it. It decides when; the rig decides what.

for step in clock:
    for batch in this worker's shards:      forward + backward          (rig.forward_backward)
    exchange, clip, step                                                (rig.apply)
    when due:  log -> end of epoch -> validate -> save                  (one list of acts, each with its Duration)
at the end:    validate, save; asked by a signal: save the same step on all workers
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from shoal.base.duration import Duration
from shoal.base.errors import ShoalError
from shoal.base.host import resident_peak
from shoal.base.run import Run
from shoal.data.batches import Batch
from shoal.launch.pulse import LONG, Pulse
from shoal.recipe.load import plain
from shoal.report.predictions import Predictions
from shoal.report.sinks import Sink
from shoal.step.meters import Meters
from shoal.step.stopwatch import INPUT, OTHER, WAITING
from shoal.strategies import Resliced
from shoal.train import checkpoint
from shoal.train.evaluate import Score, judge
from shoal.train.fitting import check_weights, optimizer_state
from shoal.train.gallery import Gallery
from shoal.train.monitored import Monitored
from shoal.train.progress import Progress
from shoal.train.setup import Setup
from shoal.train.signals import StopSignals
from shoal.train.timing import Timing, told_every
from shoal.train.tracing import Tracing

_BESIDE = ("scaler", "outer")
"""What a rig's state may hold beside weights and optimizer."""


class Trainer:
    """Trains what was set up. Every rank has one; only the first one's sink and run are used."""

    def __init__(
        self, setup: Setup, run: Run, sink: Sink, manifest: dict[str, Any], pulse: Pulse | None = None
    ) -> None:
        """manifest: what checkpoints say of themselves. pulse: is told where this worker stands."""
        recipe, gang, clock, cut = setup.recipe, setup.gang, setup.clock, setup.cut
        self.recipe, self.rig, self.gang, self.clock = recipe, setup.rig, gang, clock
        self.pulse = pulse or Pulse()
        self.cut, self._val, self._run, self._sink, self._manifest = cut, setup.data.val, run, sink, manifest
        data: Any = recipe.data
        self._setup, self.batches = setup, setup.batches()
        self.meters = Meters(cut.shards, gang, recipe.task)  # type: ignore[arg-type]
        self._timing, self._timed_step = Timing(gang, together=not setup.rig.asynchronous), 0
        self.tracing = Tracing(gang, recipe.trace) if recipe.trace else None
        self._peak = recipe.optim.peak(cut.span.batch)  # type: ignore[attr-defined]
        self.best_top1, self.best_step = -1.0, -1
        self.score: Score | None = None
        self._predictions: Predictions | None = None
        """Of the best validation so far, until they are saved."""
        self._gallery = Gallery(setup.data.val, data)
        self._scored_step = self._saved_step = -1
        self._epoch_began = self._logged_s = self._logged_waited = 0.0
        self._logged_images = self._logged_bytes = self._logged_step = 0
        self.first_step_at: float | None = None
        self._cpu_began, self._began_step = 0.0, 0
        self._waited_before = 0.0
        clock.every(recipe.log_every, self.log, alone=True)
        if recipe.monitor is not None:
            clock.every(recipe.monitor, self.monitor, alone=True)
        clock.every(Duration.parse("1ep"), self.end_epoch)
        clock.every(recipe.eval_every, self.validate)
        clock.every(recipe.save_every, self.save)

    def fit(self, signals: StopSignals) -> int:
        """Trains to the end, or until a signal asks any worker to stop. Returns the ask that ended it, or 0."""
        clock, rig = self.clock, self.rig
        self._cpu_began, self._began_step = time.process_time(), clock.step
        self._logged_s, self._logged_images, asked = clock.trained_s, clock.images, 0
        self._logged_bytes, self._logged_step = rig.bytes_sent, clock.step
        self._timed_step = clock.step
        self.gang.watch.reset()  # of what was before a rollback
        if rig.asynchronous:
            from shoal.train.stretches import Stretches

            asked = Stretches(self).fit(signals)
        else:
            asked = self._fit_together(signals)
        if self.tracing:
            self.tracing.save(self._run.trace)
        if not asked:
            self.validate()
        self.save()
        return asked

    def _fit_together(self, signals: StopSignals) -> int:
        clock, rig, pulse, watch, asked = self.clock, self.rig, self.pulse, self.gang.watch, 0
        steps = self.batches.steps(clock.step, clock.steps)
        try:
            for step in clock:
                patience = self.patience()
                if self.gang.place != (self.cut.replica, self.cut.num_replicas):
                    steps.close()
                    steps = self._resliced()
                pulse.beat("waits for data", step)
                watch.to(INPUT)
                batches = next(steps)
                rig.ask, rig.seen = signals.ask, clock.images
                outputs = []
                for batch in batches:
                    pulse.beat("computes", step, patience)
                    outputs.append((batch, rig.forward_backward(batch, last=batch is batches[-1])))
                pulse.beat("exchanges", step, patience)
                try:
                    stepped, asked = rig.apply(self.lr(clock.images), self.cut.count(step))
                except Resliced:
                    steps.close()
                    steps = self._resliced()
                    continue
                watch.to(OTHER)
                if stepped:
                    for batch, output in outputs:
                        self.meters.add(batch, output)
                else:
                    self.tell_skip()
                watch.lap()
                self.trace()
                if self.first_step_at is None:
                    self.first_step_at = time.time()
                    watch.reset()  # the first step is part of starting up
                for act in clock.tick():
                    act()
                if asked:
                    clock.stop("signal")
        finally:
            steps.close()
        self.tell_time()
        return asked

    @contextmanager
    def _pause(self) -> Iterator[float]:
        """What happens inside is no training time; gives when it begins (seconds of the performance counter).

        Where workers make their steps together it is one stretch of time for all: they come in together, and go on when
        the first one is done, who may have more to do. Else they would wait for him in the next exchange, and the same
        time would be told twice.
        """
        gang, together = self.gang, not self.rig.asynchronous
        if together:
            gang.watch.to(WAITING)
            gang.barrier()
        if gang.device.type == "cuda":
            torch.cuda.synchronize(gang.device)  # steps that it still has to do are no pause
        with self.clock.paused(), gang.watch.paused():
            yield time.perf_counter()
            if together:
                gang.barrier()

    def patience(self) -> float:
        """First steps may compile: the model (again for an epoch's short last batch), or what a device needs."""
        compiles = self.recipe.model.compile and self.clock.epoch == 0
        return LONG if compiles or self.first_step_at is None else 1.0

    def trace(self) -> None:
        """A step is done. To begin and end a recording takes long; that is nobody's time."""
        if self.tracing:
            with self.clock.paused(), self.gang.watch.paused():
                self.tracing.lap()

    def _resliced(self) -> Generator[list[Batch], None, None]:
        """Batches from the step under way on, shared out among the workers who are still there."""
        replica, num_replicas = self.gang.place
        self.cut, before = replace(self.cut, replica=replica, num_replicas=num_replicas), self.batches
        self.batches = self._setup.batches(self.cut)
        self.batches.waited_s, self.batches.made_s = before.waited_s, before.made_s
        self.tell("note", level="warning", text=f"{num_replicas} workers go on with step {self.clock.step}")
        return self.batches.steps(self.clock.step, self.clock.steps)

    def lr(self, images: int) -> float:
        """Learning rate of the step that begins after `images`."""
        clock = self.clock
        return self._peak * self.recipe.schedule.factor(images, clock.total_images, clock.span)  # type: ignore[attr-defined]

    def log(self) -> None:
        """Means since the last log; where workers go their own ways, of the first one's images."""
        rig = self.rig
        rig.settle()
        metrics = self.meters.read_own() if self.rig.asynchronous else self.meters.read_interval()
        if not metrics.seen:
            return  # the first worker did nothing meanwhile
        clock = self.clock
        seconds = max(clock.trained_s - self._logged_s, 1e-9)
        waited = self.batches.waited_s - self._logged_waited
        self.tell(
            "train",
            batch=clock.step_of_epoch,
            **metrics.figures(),
            lr=self.lr(clock.span.images_before(clock.step - 1)),
            images_per_s=(clock.images - self._logged_images) / seconds,
            wait_share=min(waited / seconds, 1.0),
            trained_s=clock.trained_s,
            bytes_per_step=(rig.bytes_sent - self._logged_bytes) / max(clock.step - self._logged_step, 1),
            **({"loss_scale": rig.scaler.scale, "skipped": rig.scaler.skipped} if rig.scaler.told else {}),
        )
        self._logged_s, self._logged_images = clock.trained_s, clock.images
        self._logged_waited = self.batches.waited_s
        self._logged_bytes, self._logged_step = rig.bytes_sent, clock.step
        if not rig.asynchronous and clock.step - self._timed_step >= told_every(clock.steps):
            self.tell_time()

    def tell_skip(self) -> None:
        """Of the step just done: all workers skipped it for a gradient that was not finite."""
        self.tell("skip", **self._scale(), skipped=self.rig.scaler.skipped)

    def _scale(self) -> dict[str, Any]:
        """The loss scale, where there is one."""
        scaler = self.rig.scaler
        return {"loss_scale": scaler.scale, "dynamic": scaler.dynamic} if scaler.told else {}

    def tell_time(self) -> None:
        """Where the workers' time went since the last time. A collective."""
        figures, self._timed_step = self._timing.read(self.batches.made_s), self.clock.step
        if figures:
            self.tell("time", **figures)

    def monitor(self) -> None:
        """Weights and gradients as they are now, for people; the gradient is this worker's own where servers add it."""
        with self._pause():
            if self.gang.leads:
                monitored = Monitored(self.rig.model)
                self.tell("monitor", tensors=monitored.figures)
                self._sink.show_histograms(self.clock.step, monitored.histograms)

    def end_epoch(self) -> None:
        metrics = self.meters.read_epoch()
        seconds, self._epoch_began = self.clock.trained_s - self._epoch_began, self.clock.trained_s
        self.tell("epoch", **metrics.figures(), seconds=seconds)

    def validate(self) -> None:
        """Top-1, top-5 and loss of the model that would be saved now."""
        if self._scored_step == self.clock.step:
            return
        averaged = self.recipe.ema is not None
        with self._pause() as began:
            self.rig.meet()
            self.rig.settle()
            self._check_finite()
            score, predictions = judge(
                lambda batch: self.rig.evaluate(batch, averaged=averaged),
                self._val,
                self.recipe.data.augment,  # type: ignore[attr-defined]
                self.recipe.data.eval_batch,  # type: ignore[attr-defined]
                self.gang,
                threads=self.recipe.data.threads,  # type: ignore[attr-defined]
                upload=self._setup.upload,
                beat=lambda: self.pulse.beat("validates", self.clock.step, self.patience()),
                together=self.rig.looks_together,
            )
            self.tell(
                "val",
                loss=score.loss,
                top1=score.top1,
                top5=score.top5,
                count=score.count,
                correct1=score.correct1,
                correct5=score.correct5,
                averaged=averaged,
                seconds=time.perf_counter() - began,
            )
            if self.gang.leads:
                self._sink.show_examples(self.clock.step, self._gallery.with_examples(predictions))
        self.score, self._scored_step = score, self.clock.step
        if score.top1 > self.best_top1:
            self.best_top1, self.best_step = score.top1, self.clock.step
            self._predictions = predictions if self.gang.leads else None
        if self.best_step == self.clock.step:
            self.save()
        self._stop_if_reached()

    def _stop_if_reached(self) -> None:
        desired = self.recipe.desired_accuracy
        if desired is not None and self.score is not None and self.score.top1 >= desired:
            self.clock.stop("desired_accuracy")

    def save(self) -> None:
        """Writes the state after the step just done, once."""
        clock = self.clock
        if self._saved_step == clock.step or clock.step == 0:
            return
        self.pulse.beat("saves", clock.step, LONG)
        with self._pause() as began:
            self.rig.meet()
            self.rig.settle()
            self._check_finite()
            weights = self.rig.state_dict()
            meters = self.meters.state()
            self._saved_step = clock.step
            if self.gang.leads:
                self._write(weights, meters)
                self.tell(
                    "save",
                    path=str(self._run.checkpoint(clock.step)),
                    seconds=time.perf_counter() - began,
                    best=self.best_step == clock.step,
                )

    def _check_finite(self) -> None:
        """An update can overflow where its gradient was finite; nobody could go on from such weights."""
        broken = self.rig.broken()
        if broken is not None:
            raise ShoalError(
                f"step {self.clock.step}: {broken} is not finite after the update, so nothing was saved. "
                "Lower optim.lr or set optim.clip_norm"
            )

    def _write(self, weights: dict[str, Any], meters: torch.Tensor) -> None:
        clock, score = self.clock, self.score
        progress = Progress(
            step=clock.step,
            batch=clock.span.batch,
            images_per_epoch=clock.span.images_per_epoch,
            shards=self.cut.shards,
            optim=self.recipe.optim.name,
            best_top1=self.best_top1,
            best_step=self.best_step,
            scored_step=self._scored_step,
            score=score,
            trained_s=clock.trained_s,
            paused_s=clock.paused_s,
            waited_s=self._waited_before + self.batches.waited_s,
            epoch_began_s=self._epoch_began,
        )
        figures = {"loss": score.loss, "top1": score.top1, "top5": score.top5, "count": score.count} if score else {}
        files = {}
        if self._predictions is not None and self.best_step == clock.step:
            predictions = self._gallery.with_pictures(self._predictions)
            files[self._run.predictions(clock.step).name] = predictions.to_bytes()
        self._predictions = None
        checkpoint.save(
            self._run.checkpoint(clock.step),
            model=weights["model"],
            ema=weights.get("ema"),
            state={
                "optimizer": weights["optimizer"],
                "meters": meters,
                "progress": progress.state(),
                **{key: weights[key] for key in _BESIDE if key in weights},
            },
            manifest={
                "step": clock.step,
                "images": clock.images,
                "epoch": clock.images / clock.span.images_per_epoch,
                "validation": figures if self._scored_step == clock.step else {},
                **self._manifest,
            },
            files=files,
        )
        if self.best_step == clock.step:
            checkpoint.mark_best(self._run, self.best_step, self.best_top1)
        checkpoint.prune(self._run, clock.step, self.recipe.keep_last, self.best_step)

    def load(self, saved: checkpoint.Checkpoint, progress: Progress, *, same_run: bool) -> list[str]:
        """Goes on from a checkpoint: the next step is the one that would have come. Returns what is not as it was."""
        notes, optimizer = optimizer_state(saved, progress, self.recipe, self.rig)
        if progress.shards != self.cut.shards:
            notes.append(
                f"batches were cut into {progress.shards} shards before, now into {self.cut.shards}: "
                "another model from here on than with the old number"
            )
        state = {"model": saved.model, "optimizer": optimizer} | ({"ema": saved.ema} if saved.ema else {})
        state |= {key: saved.state[key] for key in _BESIDE if key in saved.state}
        notes += check_weights(saved, self.recipe)
        changed = saved.manifest["recipe"]["optim"] != plain(self.recipe.optim)
        try:
            self.rig.load_state_dict(state, new_options=changed)
        except ShoalError as error:
            raise ShoalError(f"{saved.path}: {error}") from None
        self.meters.load(saved.state["meters"])
        clock = self.clock
        clock.step, clock.trained_s, clock.paused_s = progress.step, progress.trained_s, progress.paused_s
        self.best_top1, self.best_step, self.score = progress.best_top1, progress.best_step, progress.score
        self._epoch_began, self._waited_before = progress.epoch_began_s, progress.waited_s
        self._scored_step = progress.scored_step
        if same_run:
            self._saved_step = progress.step
            # A kill may have come between saving the best checkpoint and marking it, or after marking a later one.
            if self.gang.leads and self._run.checkpoint(self.best_step).is_dir():
                checkpoint.mark_best(self._run, self.best_step, self.best_top1)
        self._stop_if_reached()
        return notes

    def end_event(self, program_began: float) -> None:
        """Tells how it ended, over all sittings; program_began: unix time at which this sitting did.

        cpu_s: processor seconds of rank 0 in this sitting, from its first step to its last validation.
        """
        clock, score = self.clock, self.score
        peak = self._peak_bytes()
        seconds, steps = max(clock.trained_s, 1e-9), clock.step - self._began_step
        self.tell(
            "end",
            reason=clock.stopped or "length",
            trained_s=clock.trained_s,
            paused_s=clock.paused_s,
            cpu_s=time.process_time() - self._cpu_began,
            program_s=time.time() - program_began,
            first_step_s=self.first_step_at - program_began if self.first_step_at else None,
            images_per_s=clock.images / seconds,
            wait_share=min((self._waited_before + self.batches.waited_s) / seconds, 1.0),
            top1=score.top1 if score else None,
            top5=score.top5 if score else None,
            loss=score.loss if score else None,
            best_top1=self.best_top1 if self.best_step >= 0 else None,
            best_step=self.best_step if self.best_step >= 0 else None,
            bytes_sent=self.rig.bytes_sent,
            bytes_per_step=self.rig.bytes_sent / steps if steps else None,
            peak_bytes=peak,
            skipped=self.rig.scaler.skipped,
        )

    def _peak_bytes(self) -> int:
        """Memory at its highest, of the worker that had most: the device's, on a CPU the process's. A collective."""
        device = self.gang.device
        held = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else resident_peak()
        return max(int(peak) for peak in self.gang.gather(torch.tensor(held, device=device)))

    def tell(self, event: str, **figures: Any) -> None:
        if self.gang.leads:
            clock = self.clock
            place = {"step": clock.step, "epoch": clock.epoch, "images": clock.images}
            self._sink.write({"event": event, **place, **{key: _finite(value) for key, value in figures.items()}})


def _finite(value: Any) -> Any:
    """What is no number is none: JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
