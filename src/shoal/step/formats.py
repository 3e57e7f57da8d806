"""Halved: a model that computes in float16 from parameters that may be float32."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class Halved(nn.Module):
    """Shares the parameters of `model`: each forward pass casts them, so that gradients arrive in their own format and
    the masters are the model's own. BatchNorm keeps the format it has where `keep_batchnorm`."""

    def __init__(self, model: nn.Module, *, keep_batchnorm: bool) -> None:
        super().__init__()
        self.model = model
        batchnorms = [(prefix, module) for prefix, module in model.named_modules() if isinstance(module, _BatchNorm)]
        kept = {
            f"{prefix}.{name}".removeprefix(".")
            for prefix, module in batchnorms
            for name, _ in module.named_parameters(recurse=False)
        }
        # A parameter that several modules share appears once, and is cast once.
        self._cast = [
            name
            for name, held in model.named_parameters()
            if held.dtype != torch.float16 and not (keep_batchnorm and name in kept)
        ]
        self._statistics = [
            f"{prefix}.{name}".removeprefix(".")
            for prefix, module in (() if keep_batchnorm else batchnorms)
            for name, held in module.named_buffers(recurse=False)
            if held.dtype == torch.float32
        ]
        """Buffers that BatchNorm wants in the format of its parameters."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        held = dict(self.model.named_parameters())
        halves = {name: held[name].half() for name in self._cast}
        masters = {name: self.model.get_buffer(name) for name in self._statistics}
        statistics = {name: buffer.half() for name, buffer in masters.items()}
        logits = torch.func.functional_call(self.model, halves | statistics, (inputs.half(),)).float()
        if self.model.training:
            for name, buffer in masters.items():
                buffer.copy_(statistics[name])
        return logits
