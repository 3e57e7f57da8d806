"""A job by hand: one process, plain torch, without rig, gang or exchange."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import torch
from job import AUGMENT, SEED, Job, Net, cut_of, lr, optim_of, pixels, precision_of, task_of
from torch import nn
from trainings import Outcome, numbers_of

from shoal.data.batches import Batch, Batches
from shoal.step.inputs import Inputs
from shoal.step.meters import Metrics
from shoal.step.randomness import seed_for


def whole(batches: list[Batch]) -> Batch:
    """A step's shards as one batch."""
    images, labels, indices = (
        torch.cat([getattr(batch, name) for batch in batches]) for name in ("images", "labels", "indices")
    )
    return replace(batches[0], images=images, labels=labels, indices=indices)


@cache
def by_hand(job: Job) -> Outcome:
    """One process, plain torch: a loop over shards, or ordinary BatchNorm over the whole batch where norm is sync."""
    data, task, dtype = pixels(job), task_of(job), precision_of(job).dtype()
    inputs = Inputs(data.mean, data.std, dtype, torch.device("cpu"))
    model = Net(job.net).to(dtype).train()
    for module in model.modules():
        if job.norm == "frozen" and isinstance(module, nn.BatchNorm2d):
            module.eval()
    optimizer = optim_of(job).make(model)
    average = copy.deepcopy(model)
    batches, cut = Batches(data, AUGMENT, cut_of(job), thread=False), cut_of(job)
    sums, history, applied = torch.zeros(3, dtype=torch.float64), [], []
    for step in range(job.steps):
        parts = batches.prepare(step)
        parts = [whole(parts)] if job.norm == "sync" else parts
        start = {name: buffer.clone() for name, buffer in model.named_buffers()}
        means = {name: torch.zeros_like(buffer, dtype=torch.float64) for name, buffer in start.items()}
        optimizer.zero_grad()
        for batch in parts:
            for name, buffer in model.named_buffers():
                buffer.copy_(start[name])
            seed_for(batch, SEED)
            loss, logits = task.loss(model, inputs(batch.images), batch, SEED)
            (loss / cut.count(step)).backward()
            for name, buffer in model.named_buffers():
                means[name] += buffer.double() * len(batch.images) / cut.count(step)
            top1 = int((logits.argmax(1) == batch.labels).sum())
            sums += torch.tensor([loss.item(), top1, len(logits)], dtype=torch.float64)
        skipped = job.poison is not None and step == job.poison.step
        for name, buffer in model.named_buffers():
            buffer.copy_(start[name] if skipped else means[name] if buffer.is_floating_point() else means[name].round())
        applied.append((not skipped, 0))
        if not skipped:
            if job.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), job.clip_norm)
            for group in optimizer.param_groups:
                group["lr"] = lr(step)
            optimizer.step()
            if job.half_life is not None:
                old = 0.5 ** (cut.count(step) / job.half_life)
                for mine, new in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
                    mine.copy_(mine * old + new * (1 - old) if mine.is_floating_point() else new)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"ema": average.state_dict()} if job.half_life is not None else {}
        history.append(numbers_of(state))
    loss, top1, count = sums.tolist()
    metrics = Metrics(loss / count, top1 / count, 1.0, round(count))  # of 3 classes, all are among the first 5
    return Outcome(history[-1], copy.deepcopy(state), metrics, applied, 0, history)
