"""Compression of what is pushed to servers: none, fp16, 2bit with error feedback (as MXNet defines it)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from shoal.base.errors import UsageError, did_you_mean

TYPES = ("none", "fp16", "2bit")


def codec(options: dict[str, Any]) -> Codec:
    """Of {"type": "2bit", "threshold": 0.5}; {} is none."""
    kind = options.get("type", "none")
    if kind not in TYPES:
        raise UsageError(f"no gradient compression '{kind}'{did_you_mean(kind, TYPES)}")
    option = {"fp16": "scale", "2bit": "threshold"}.get(kind)
    unknown = options.keys() - {"type", option}
    if unknown:
        raise UsageError(f"gradient compression {kind} has no option '{min(unknown)}'")
    if option is None:
        return Whole()
    value = options.get(option, 1.0 if kind == "fp16" else 0.5)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise UsageError(f"gradient compression {kind}: {option} {value!r} must be a number above 0")
    return Half(float(value)) if kind == "fp16" else TwoBit(float(value))


class Codec(ABC):
    """A worker's for one flat tensor, or a server's. `number`: what headers call it."""

    number: int

    @abstractmethod
    def nbytes(self, count: int, kind: torch.dtype) -> int:
        """Of `count` numbers on the wire."""

    @abstractmethod
    def encode(self, start: int, values: torch.Tensor) -> torch.Tensor:
        """What travels; values: [start, start + len) of the flat tensor. A view of `values` where nothing is done."""

    @abstractmethod
    def decode(self, data: torch.Tensor, into: torch.Tensor) -> None:
        """data: uint8 as received."""


class Whole(Codec):
    number = 0

    def nbytes(self, count: int, kind: torch.dtype) -> int:
        return count * kind.itemsize

    def encode(self, start: int, values: torch.Tensor) -> torch.Tensor:
        return values

    def decode(self, data: torch.Tensor, into: torch.Tensor) -> None:
        into.copy_(data.view(into.dtype))


class Half(Codec):
    """float16 of `scale` times the number; what is too large for it becomes infinite, and the step is dropped as not
    finite."""

    number = 1

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def nbytes(self, count: int, kind: torch.dtype) -> int:
        return 2 * count

    def encode(self, start: int, values: torch.Tensor) -> torch.Tensor:
        return values.half() if self._scale == 1 else values.mul(self._scale).half()

    def decode(self, data: torch.Tensor, into: torch.Tensor) -> None:
        into.copy_(data.view(torch.float16))
        if self._scale != 1:
            into.div_(self._scale)


class TwoBit(Codec):
    """Each number becomes threshold, -threshold or 0; what was left out is added to the next push of the same place.

    Codes 11, 10, 00; sixteen numbers to a word of four bytes, the first in the highest bits of the first byte. 01, for
    which MXNet has no use, says that a value was not finite, so that everybody drops the step.
    """

    number = 2

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._residual: dict[tuple[int, int], torch.Tensor] = {}

    def nbytes(self, count: int, kind: torch.dtype) -> int:
        return -(-count // 16) * 4

    def encode(self, start: int, values: torch.Tensor) -> torch.Tensor:
        # Pieces are the same in every step; if ever they are not, what was left out of the old ones is lost.
        residual = self._residual.setdefault((start, len(values)), torch.zeros_like(values))
        size = self.nbytes(len(values), values.dtype)
        if not torch.isfinite(values).all():  # the step will be dropped; what was left out stays as it is
            return torch.full((size,), 0b01_01_01_01, dtype=torch.uint8, device=values.device)
        residual += values
        up, down = residual >= self._threshold, residual <= -self._threshold
        residual.sub_(up.to(values.dtype), alpha=self._threshold).add_(down.to(values.dtype), alpha=self._threshold)
        codes = torch.zeros(size * 4, dtype=torch.uint8, device=values.device)
        codes[: len(values)] = up * 3 + down * 2
        four = codes.view(-1, 4)
        return four[:, 0] << 6 | four[:, 1] << 4 | four[:, 2] << 2 | four[:, 3]

    def decode(self, data: torch.Tensor, into: torch.Tensor) -> None:
        codes = torch.stack([data >> 6, data >> 4 & 3, data >> 2 & 3, data & 3], 1).view(-1)[: len(into)]
        meant = [0.0, torch.nan, -self._threshold, self._threshold]
        into.copy_(torch.tensor(meant, dtype=into.dtype, device=into.device)[codes.long()])
