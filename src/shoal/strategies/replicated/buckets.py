"""Buckets: a flat gradient, handed over in pieces while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

SIZE = 1 << 20
"""Numbers; a message of 4 MB takes far longer than what each costs to send."""


class Buckets:
    """Cut from the end, for backward passes come to the last parameters first; the same cut in every step."""

    def __init__(self, parameters: Sequence[nn.Parameter], give: Callable[[int, int], None], size: int = SIZE) -> None:
        """parameters: as they lie in the flat gradient. give(low, high): numbers of it that will change no more."""
        self._give = give
        self._ranges: list[tuple[int, int]] = []
        """Of each bucket, the last first."""
        self._counts: list[int] = []
        self._left: list[int] = []
        """Parameters of each bucket that the backward pass has not been through; nothing while no hook counts."""
        high = low = sum(parameter.numel() for parameter in parameters)
        count = 0
        for number, parameter in reversed(list(enumerate(parameters))):
            parameter.register_post_accumulate_grad_hook(partial(self._made, len(self._ranges)))
            low, count = low - parameter.numel(), count + 1
            if high - low >= size or number == 0:
                self._ranges.append((low, high))
                self._counts.append(count)
                high, count = low, 0

    def arm(self) -> None:
        """The next backward pass is the step's last."""
        self._left = list(self._counts)

    def flush(self) -> None:
        """Hands over what the backward pass has left: parameters that had no part in it."""
        left, self._left = self._left, []
        for bucket, waiting in enumerate(left):
            if waiting:
                self._give(*self._ranges[bucket])

    def _made(self, bucket: int, parameter: nn.Parameter) -> None:
        if not self._left:
            return
        self._left[bucket] -= 1
        if not self._left[bucket]:
            self._give(*self._ranges[bucket])
