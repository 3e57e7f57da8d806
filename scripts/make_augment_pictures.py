"""Makes the pictures of docs/augment.md: each augmentation on a landscape that is drawn here. Same pixels on every run.

Run it from the repository: `python scripts/make_augment_pictures.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from shoal.data.augment import Affine, Augment, Colour, Cutout, Erase
from shoal.data.augment.policies.autoaugment import AutoAugment
from shoal.data.augment.policies.randaugment import RandAugment
from shoal.data.augment.policies.trivialaugment import TrivialAugment
from shoal.data.decode import Pictures
from shoal.data.source import Held

TARGET = Path(__file__).resolve().parents[1] / "docs/images"
SIDE, COUNT, GAP = 112, 7, 4
PICTURES: dict[str, Augment] = {
    "pad-crop-mirror": Augment(pad=20, fill=127, mirror=True),
    "size": Augment(size=SIDE, mirror=True),
    "affine-rotate": Augment(affine=Affine(rotate=30), fill=127),
    "affine-shear": Augment(affine=Affine(shear=0.4), fill=127),
    "affine-scale": Augment(affine=Affine(scale=(0.5, 1.5)), fill=127),
    "affine-ratio": Augment(affine=Affine(ratio=(0.5, 1.5)), fill=127),
    "policy-randaugment": Augment(policy=RandAugment(magnitude=15, fill=128)),
    "policy-trivialaugment": Augment(policy=TrivialAugment(fill=128)),
    "policy-autoaugment": Augment(policy=AutoAugment(fill=128)),
    "colour-jitter": Augment(colour=Colour(brightness=0.4, contrast=0.4, saturation=0.4)),
    "colour-hls": Augment(colour=Colour(hls=(36, 50, 50))),
    "colour-pca": Augment(colour=Colour(pca=0.4)),
    "erase-mean": Augment(erase=Erase(probability=1)),
    "erase-noise": Augment(erase=Erase(probability=1, paint="noise")),
    "cutout": Augment(cutout=Cutout(side=48)),
}


def landscape(side: int) -> np.ndarray:
    """uint8 [3, side, side]: sky, a sun, mountains, water with a boat."""
    y, x = np.mgrid[:side, :side] / side
    image = np.stack([110 + 90 * y, 160 + 60 * y, 235 - 20 * y])
    ridge = 0.42 + 0.08 * np.sin(9 * x) + 0.05 * np.sin(23 * x + 1)
    for colour, where in [
        ((255, 225, 90), (x - 0.76) ** 2 + (y - 0.2) ** 2 < 0.008),
        ((96, 112, 84), y > ridge),
        ((236, 240, 244), (y > ridge) & (y < ridge + 0.05) & (ridge < 0.4)),
        ((40, 110, 150), y > 0.62),
        ((150, 60, 40), (abs(y - 0.755) < 0.035) & (abs(x - 0.4) < 0.17 - (y - 0.72))),
        ((90, 60, 40), (abs(x - 0.4) < 0.008) & (y > 0.45) & (y < 0.73)),
        ((245, 235, 215), (x > 0.415) & (x < 0.415 + (y - 0.46) * 0.7) & (y < 0.69)),
    ]:
        image[:, where] = np.array(colour)[:, None]
    water = (y > 0.62) & (np.sin(90 * y + 6 * np.sin(14 * x)) > 0.6) & ((abs(x - 0.4) > 0.19) | (y > 0.8))
    image[:, water] += 28
    return np.clip(image, 0, 255).astype(np.uint8)


def strip(augment: Augment) -> Image.Image:
    """The landscape as it is, and as it looks to a training in several epochs."""
    held = Held(landscape(SIDE)[None], np.zeros(1, np.int64), ("boat",), mean=(124, 116, 104), std=(58, 57, 57))
    pictures = Pictures(held, augment)
    seen = [held.images[0], *(pictures.train(np.arange(1), seed=2, epoch=epoch)[0][0] for epoch in range(COUNT - 1))]
    whole = np.full((3, SIDE, COUNT * (SIDE + GAP) - GAP), 255, np.uint8)
    for place, image in enumerate(seen):
        whole[:, :, place * (SIDE + GAP) :][:, :, :SIDE] = image
    return Image.fromarray(whole.transpose(1, 2, 0))


def main() -> None:
    torch.set_num_threads(1)
    for name, augment in PICTURES.items():
        path = TARGET / f"augment-{name}.png"
        strip(augment).save(path, optimize=True)
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
