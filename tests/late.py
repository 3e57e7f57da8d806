"""An upload that is as late as can be: nothing has come until somebody says that it is wanted, as on a slow device."""

from __future__ import annotations

import torch

from shoal.data.upload import Tensors


class Late:
    """To be given where an Upload is."""

    def __init__(self) -> None:
        self.sent = self.arrived = 0

    def __call__(self, tensors: Tensors) -> tuple[Tensors, _Underway]:
        self.sent += 1
        there = tuple(torch.full_like(tensor, 77) for tensor in tensors)
        return there, _Underway(self, tensors, there)


class _Underway:
    def __init__(self, upload: Late, source: Tensors, there: Tensors) -> None:
        self._upload, self._source, self._there = upload, source, there

    def arrive(self) -> None:
        if not self._source:
            return
        for source, there in zip(self._source, self._there, strict=True):
            there.copy_(source)
        self._upload.arrived += 1
        self._source = ()
