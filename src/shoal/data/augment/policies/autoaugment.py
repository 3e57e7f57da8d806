from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Literal

from shoal.data.augment.draws import POLICY, Draws
from shoal.data.augment.policy import Policy, Round

TABLES = {
    "imagenet": """
        Posterize 0.4 8, Rotate 0.6 9
        Solarize 0.6 5, AutoContrast 0.6
        Equalize 0.8, Equalize 0.6
        Posterize 0.6 7, Posterize 0.6 6
        Equalize 0.4, Solarize 0.2 4
        Equalize 0.4, Rotate 0.8 8
        Solarize 0.6 3, Equalize 0.6
        Posterize 0.8 5, Equalize 1.0
        Rotate 0.2 3, Solarize 0.6 8
        Equalize 0.6, Posterize 0.4 6
        Rotate 0.8 8, Color 0.4 0
        Rotate 0.4 9, Equalize 0.6
        Equalize 0.0, Equalize 0.8
        Invert 0.6, Equalize 1.0
        Color 0.6 4, Contrast 1.0 8
        Rotate 0.8 8, Color 1.0 2
        Color 0.8 8, Solarize 0.8 7
        Sharpness 0.4 7, Invert 0.6
        ShearX 0.6 5, Equalize 1.0
        Color 0.4 0, Equalize 0.6
        Equalize 0.4, Solarize 0.2 4
        Solarize 0.6 5, AutoContrast 0.6
        Invert 0.6, Equalize 1.0
        Color 0.6 4, Contrast 1.0 8
        Equalize 0.8, Equalize 0.6
    """,
    "cifar10": """
        Invert 0.1, Contrast 0.2 6
        Rotate 0.7 2, TranslateX 0.3 9
        Sharpness 0.8 1, Sharpness 0.9 3
        ShearY 0.5 8, TranslateY 0.7 9
        AutoContrast 0.5, Equalize 0.9
        ShearY 0.2 7, Posterize 0.3 7
        Color 0.4 3, Brightness 0.6 7
        Sharpness 0.3 9, Brightness 0.7 9
        Equalize 0.6, Equalize 0.5
        Contrast 0.6 7, Sharpness 0.6 5
        Color 0.7 7, TranslateX 0.5 8
        Equalize 0.3, AutoContrast 0.4
        TranslateY 0.4 3, Sharpness 0.2 6
        Brightness 0.9 6, Color 0.2 8
        Solarize 0.5 2, Invert 0.0
        Equalize 0.2, AutoContrast 0.6
        Equalize 0.2, Equalize 0.6
        Color 0.9 9, Equalize 0.6
        AutoContrast 0.8, Solarize 0.2 8
        Brightness 0.1 3, Color 0.7 0
        Solarize 0.4 5, AutoContrast 0.9
        TranslateY 0.9 9, TranslateY 0.7 9
        AutoContrast 0.9, Solarize 0.8 3
        Equalize 0.8, Invert 0.1
        TranslateY 0.7 9, AutoContrast 0.9
    """,
    "svhn": """
        ShearX 0.9 4, Invert 0.2
        ShearY 0.9 8, Invert 0.7
        Equalize 0.6, Solarize 0.6 6
        Invert 0.9, Equalize 0.6
        Equalize 0.6, Rotate 0.9 3
        ShearX 0.9 4, AutoContrast 0.8
        ShearY 0.9 8, Invert 0.4
        ShearY 0.9 5, Solarize 0.2 6
        Invert 0.9, AutoContrast 0.8
        Equalize 0.6, Rotate 0.9 3
        ShearX 0.9 4, Solarize 0.3 3
        ShearY 0.8 8, Invert 0.7
        Equalize 0.9, TranslateY 0.6 6
        Invert 0.9, Equalize 0.6
        Contrast 0.3 3, Rotate 0.8 4
        Invert 0.8, TranslateY 0.0 2
        ShearY 0.7 6, Solarize 0.4 8
        Invert 0.6, Rotate 0.8 4
        ShearY 0.3 7, TranslateX 0.9 3
        ShearX 0.1 6, Invert 0.6
        Solarize 0.7 2, TranslateY 0.6 7
        ShearY 0.8 4, Invert 0.8
        ShearX 0.7 9, TranslateY 0.8 3
        ShearY 0.8 5, AutoContrast 0.7
        ShearX 0.7 2, Invert 0.1
    """,
}
"""What was found on each set of images: pairs of operations, each with its probability and its strength of 0 to 9."""
_BINS = 10


class AutoAugment(Policy, frozen=True, kw_only=True):
    """AutoAugment (Cubuk et al. 2018): one of 25 pairs of operations that were found by searching."""

    name: Literal["autoaugment"] = "autoaugment"
    table: Literal["imagenet", "cifar10", "svhn"] = "imagenet"
    """The images they were found on."""

    def rounds(self, draws: Draws, height: int, width: int) -> Iterator[Round]:
        from shoal.data.augment.operations import SIGNED, strengths

        pairs = table(self.table)
        which = draws.whole(len(pairs), POLICY, 0).tolist()
        for place in range(2):
            chances = draws.uniform(POLICY, 1, place).tolist()
            other = (draws.uniform(POLICY, 2, place) < 0.5).tolist()
            chosen = []
            for one, chance, turned in zip(which, chances, other, strict=True):
                name, probability, level = pairs[one][place]
                value = strengths(name, _BINS, height, width)[level]
                done = (name, -value if turned and name in SIGNED else value)
                chosen.append(done if chance < probability else ("Identity", 0.0))
            yield chosen


@cache
def table(name: str) -> tuple[tuple[tuple[str, float, int], ...], ...]:
    """Pairs of (operation, probability, strength)."""

    def operation(text: str) -> tuple[str, float, int]:
        name, probability, *level = text.split()
        return name, float(probability), int(level[0]) if level else 0

    return tuple(tuple(map(operation, line.split(","))) for line in TABLES[name].strip().splitlines())
