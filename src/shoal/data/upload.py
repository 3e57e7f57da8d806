"""Upload: from pinned memory to a device by a stream of its own, beside what the device computes.

The host waits for no copy. The device waits for one where its tensors are first used: there `arrive` is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class Sent(Protocol):
    """Tensors under way."""

    def arrive(self) -> None:
        """What the caller's stream does from here on comes after the copy. May be called again."""
        ...


Tensors = tuple[torch.Tensor, ...]
Send = Callable[[Tensors], tuple[Tensors, Sent | None]]
"""Tensors to where they will be, and what to wait for before they are used; None: nothing."""


class Upload:
    """Sends tensors to `device`; to a CPU nothing is sent. ahead=False: they are pinned and stay where they are, for
    somebody who copies them to devices of his own."""

    def __init__(self, device: torch.device, *, ahead: bool = True) -> None:
        self._device, self._pin = device, device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._pin and ahead else None

    def __call__(self, tensors: Tensors) -> tuple[Tensors, Sent | None]:
        if self._pin:
            tensors = tuple(tensor.pin_memory() for tensor in tensors)
        if self._stream is None:
            return tensors, None
        # A thread's current device is the first one, and to come back there from a stream makes a context on it.
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            # Host memory goes back to be used again only after the copy: torch's pinned allocator sees to that.
            there = tuple(tensor.to(self._device, non_blocking=True) for tensor in tensors)
            copied = torch.cuda.Event()
            copied.record(self._stream)
            return there, _Copied(there, copied)


class _Copied:
    def __init__(self, tensors: Tensors, event: torch.cuda.Event) -> None:
        self._tensors, self._event = tensors, event

    def arrive(self) -> None:
        user = torch.cuda.current_stream(self._tensors[0].device)
        user.wait_event(self._event)
        for tensor in self._tensors:
            tensor.record_stream(user)  # its memory was the copying stream's; it is not free while this one reads
