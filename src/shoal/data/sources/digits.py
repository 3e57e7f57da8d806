"""The built-in handwritten digits: 1,797 grey images of 8x8 pixels, in the package, with their licence beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from shoal.data.source import Held, Source, Split

FILE = Path(__file__).parent.parent / "digits" / "digits.npz"


class Digits(Source, frozen=True, kw_only=True):
    """UCI optical recognition of handwritten digits (Alpaydin, Kaynak 1998): 1,438 to train on, 359 to validate."""

    name: Literal["digits"] = "digits"

    def open(self, split: Split) -> Held:
        import numpy as np

        with np.load(FILE, allow_pickle=False) as held:
            images, labels = held[f"{split}_images"], held[f"{split}_labels"]
        return Held(
            images[:, None],
            labels,
            tuple("0123456789"),
            mean=(77.9,),
            std=(95.89,),
            limit=self.limit,
        )
