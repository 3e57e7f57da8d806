"""Distilling: what a teacher says of images, and how far the student's logits are from it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import torch
from torch.nn.functional import kl_div

from shoal.data.batches import Batch
from shoal.data.source import NO_IMAGE
from shoal.step.inputs import Inputs
from shoal.step.tasks.distill import Distill


class Said(NamedTuple):
    """A teacher's probabilities for a batch, softened by the task's temperature."""

    logs: torch.Tensor
    """[B, classes], logarithms of probabilities that sum to 1; with `chosen` [B, k] or [B, k + 1]."""
    chosen: torch.Tensor | None = None
    """int64 [B, k]: the classes that `logs` are of; a last column is of all others together."""


class Taught(Distill, frozen=True, kw_only=True):
    """The distill task with its teacher at hand."""

    says: Callable[[Batch], Said]

    @staticmethod
    def by(task: Distill, says: Callable[[Batch], Said]) -> Taught:
        return Taught(**msgspec.structs.asdict(task), says=says)

    def loss(
        self, net: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor, batch: Batch, seed: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        said = self.says(batch)
        logits = net(inputs)
        ours = student(logits, self.softness, said.chosen)
        apart = self._divergence(ours, said.logs.to(ours.dtype))
        loss = self.distill_weight * apart.where(batch.labels != NO_IMAGE, 0.0).sum()
        if self.label_weight:
            loss = loss + self.label_weight * self.label_loss(logits, batch.labels)
        return loss, logits

    def _divergence(self, ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        """[B], of logarithms of probabilities [B, n]."""
        to_teacher = kl_div(ours, theirs, reduction="none", log_target=True).sum(1)
        if self.divergence == "kl":
            return to_teacher * self.softness**2
        return (to_teacher + kl_div(theirs, ours, reduction="none", log_target=True).sum(1)) / 2


def student(logits: torch.Tensor, temperature: float, chosen: torch.Tensor | None) -> torch.Tensor:
    """Logarithms of the probabilities of all classes, or of those chosen and of all others together."""
    logs = soft(logits, temperature)
    if chosen is None:
        return logs
    kept = logs.gather(1, chosen)
    if chosen.shape[1] == logs.shape[1]:
        return kept
    others = logs.scatter(1, chosen, -torch.inf).logsumexp(1, keepdim=True)
    return torch.cat([kept, others], 1)


def soft(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """log_softmax of logits / temperature, in float32 at least."""
    return (logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature).log_softmax(1)


class Asked:
    """A teacher that looks at every batch: frozen, in evaluation mode, with its own normalisation of pixels."""

    def __init__(
        self,
        model: torch.nn.Module,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        temperature: float,
        *,
        dtype: torch.dtype = torch.float32,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        """mean, std: per channel, in units of 0 to 255, of the images that the teacher learnt from."""
        self.model = model.eval().requires_grad_(False).to(dtype=dtype, memory_format=layout)  # type: ignore[call-overload]
        self._mean, self._std, self._temperature, self._dtype, self._layout = mean, std, temperature, dtype, layout
        self._there: dict[torch.device, tuple[torch.nn.Module, Inputs]] = {}

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Said:
        model, inputs = self._on(batch.images.device)
        return Said(soft(model(inputs(batch.images)), self._temperature))

    def _on(self, device: torch.device) -> tuple[torch.nn.Module, Inputs]:
        """The teacher on a device that asks; one worker may have several."""
        if device not in self._there:
            model = self.model if device.type == "cpu" else copy.deepcopy(self.model).to(device)
            self._there[device] = model, Inputs(self._mean, self._std, self._dtype, device, self._layout)
        return self._there[device]
