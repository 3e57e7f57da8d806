"""Operations of the policies: what they are called, how strong they are, and what they do to images; torchvision's."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

from shoal.data.augment.colour import brightened, contrasted, saturated

if TYPE_CHECKING:
    import numpy as np

NAMES = ("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast",
         "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize")  # fmt: skip
"""Those that RandAugment and TrivialAugment choose from; AutoAugment knows Invert, too."""
SIGNED = frozenset(NAMES[1:10])
"""Those that go to either side."""
MOVES: dict[str, Callable[[float], dict[str, Any]]] = {
    "ShearX": lambda strength: {"shear": [math.degrees(math.atan(strength)), 0.0], "center": [0, 0]},
    "ShearY": lambda strength: {"shear": [0.0, math.degrees(math.atan(strength))], "center": [0, 0]},
    "TranslateX": lambda strength: {"translate": [int(strength), 0]},
    "TranslateY": lambda strength: {"translate": [0, int(strength)]},
}
"""As arguments of torchvision's affine."""
BLENDS = {"Brightness": brightened, "Contrast": contrasted, "Color": saturated}


@cache
def strengths(name: str, bins: int, height: int, width: int, *, wide: bool = False) -> tuple[float, ...]:
    """The strengths of an operation on images of this size, weakest first; zeros where it knows none.

    wide: TrivialAugment's, which are larger. Shears are columns per row, moves pixels, angles degrees.
    """
    import torch

    if name == "Posterize":  # bits that are left
        return tuple((8 - torch.arange(bins) / ((bins - 1) / (6 if wide else 4))).round().tolist())
    side = {"TranslateX": width, "TranslateY": height}.get(name, 0)
    most = {"ShearX": 0.3, "ShearY": 0.3, "Rotate": 30.0, "Solarize": 0.0}.get(name, 0.9)
    if wide:
        most = {"Rotate": 135.0, "Solarize": 0.0}.get(name, 32.0 if side else 0.99)
    elif side:
        most = 150.0 / 331.0 * side
    if name not in SIGNED and name != "Solarize":
        most = 0.0
    return tuple(torch.linspace(1.0 if name == "Solarize" else 0.0, most, bins).tolist())


def operated(
    images: np.ndarray, name: str, strength: float, *, fill: int, filter: Literal["nearest", "linear"]
) -> np.ndarray:
    """uint8 [B, C, H, W] -> the same shape; fill: value of pixels that come in from outside."""
    import numpy as np
    import torch
    from torchvision.transforms.v2 import InterpolationMode, functional

    if name in BLENDS:
        without_colour = name == "Color" and images.shape[1] == 1
        return images if without_colour else BLENDS[name](images, np.full(len(images), 1 + strength))
    held = torch.from_numpy(images)
    how = {
        "interpolation": InterpolationMode.NEAREST if filter == "nearest" else InterpolationMode.BILINEAR,
        "fill": [float(fill)] if fill else None,
    }
    if name in MOVES:
        still = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
        return functional.affine(held, **{**still, **MOVES[name](strength)}, **how).numpy()
    act: Callable[[torch.Tensor], torch.Tensor] = {
        "Rotate": partial(functional.rotate, angle=strength, **how),
        "Sharpness": partial(functional.adjust_sharpness, sharpness_factor=1 + strength),
        "Posterize": partial(functional.posterize, bits=int(strength)),
        "Solarize": partial(functional.solarize, threshold=255 * strength),
        "AutoContrast": functional.autocontrast,
        "Equalize": functional.equalize,
        "Invert": functional.invert,
    }[name]
    return act(held).numpy()
