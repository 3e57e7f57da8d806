"""Monitored: a model's weights and gradients at one moment, as numbers for people."""

from __future__ import annotations

import torch

from shoal.report.histogram import Histogram

_BUCKETS = 40


class Monitored:
    """Looks at every trainable tensor once."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.histograms: dict[str, Histogram] = {}
        """By `weights/NAME` and `gradients/NAME`; of the finite values."""
        self.figures: list[dict[str, str | float | None]] = []
        """For each tensor its name and the root mean squares of its weights and gradient."""
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                weight, gradient = self._look("weights", name, parameter), self._look("gradients", name, parameter.grad)
                self.figures.append({"name": name, "weight_rms": weight, "gradient_rms": gradient})

    def _look(self, kind: str, name: str, tensor: torch.Tensor | None) -> float | None:
        """Root mean square; None where there is nothing, or a value that is no number."""
        if tensor is None or not tensor.numel():
            return None
        values = tensor.detach().double().flatten()
        finite = values[values.isfinite()]
        if len(finite):
            self.histograms[f"{kind}/{name}"] = _histogram(finite)
        return float(values.square().mean().sqrt()) if len(finite) == len(values) else None


def _histogram(values: torch.Tensor) -> Histogram:
    least, most = float(values.min()), float(values.max())
    if least == most:
        limits, buckets = [most], [float(len(values))]
    else:
        buckets = torch.histc(values, _BUCKETS, least, most).tolist()
        limits = [least + (most - least) * (number + 1) / _BUCKETS for number in range(_BUCKETS)]
    total, squares = float(values.sum()), float(values.square().sum())
    return Histogram(least, most, len(values), total, squares, limits, buckets)
