"""CifarWhitenet: a small net whose first layer is not learnt but computed from the images: the most accuracy per
processor-second on 32x32 images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.base.errors import UsageError

PATCH = 4
"""Side of the patches that the first layer whitens, pixels."""
EPS = 5e-4
"""Added to a patch direction's variance before the division, in units of normalised pixels squared."""


class CifarWhitenet(nn.Module):
    """A frozen whitening stem, then three stages `width`, 2·width, 4·width wide; each stage has one residual
    convolution, the later ones begin with a convolution and a max-pool. A global max-pool and a linear head.

    Images `[B, channels, H, W]` float, H and W at least 16 -> logits `[B, classes]`; 9.6 M multiply-adds per 32x32
    image at width 24. `drop` is the dropout before the head. After Page (2019, "How to train your ResNet", patch
    whitening) and Jordan (2024, arXiv 2404.00498, both signs of every direction, first weights that pass their input
    on).

    The stem's weights come from `start_from`; before it is called they are zero.
    """

    def __init__(self, *, classes: int, channels: int = 3, width: int = 24, drop: float = 0.0) -> None:
        super().__init__()
        directions = channels * PATCH**2
        if width > 2 * directions:
            raise UsageError(f"width {width}: patches of {channels} x {PATCH} x {PATCH} have {directions} directions")
        self.stem = nn.Conv2d(channels, width, PATCH, stride=2, padding=1, bias=False)
        self.stem.weight.requires_grad_(False).zero_()
        self.features = nn.Sequential(
            nn.GELU(),
            Residual(width),
            Widening(width, 2 * width),
            Residual(2 * width),
            Widening(2 * width, 4 * width),
            Residual(4 * width),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
        )
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.drop(self.features(self.stem(images))))

    @torch.no_grad()
    def start_from(self, images: Tensor) -> None:
        """Sets the stem from training images, `[n, channels, H, W]` as the model sees them: the directions in which
        patches vary most, each scaled to variance one, and their negatives."""
        width = self.stem.out_channels
        patches = F.unfold(images.double(), PATCH, stride=2).transpose(1, 2).flatten(0, 1)
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        largest = (vectors / (values + EPS).sqrt()).T.flip(0)[: width // 2]
        # An eigenvector's sign is the library's whim: the largest entry is made positive.
        largest *= largest.gather(1, largest.abs().argmax(1, keepdim=True)).sign()
        self.stem.weight.copy_(torch.cat([largest, -largest]).view_as(self.stem.weight))


class Residual(nn.Module):
    """x + gelu(bn(conv(x)))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = _conv(width, width)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.norm(self.conv(x)))


class Widening(nn.Sequential):
    """gelu(bn(maxpool(conv(x)))): half the side, twice the width."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(_conv(inputs, outputs), nn.MaxPool2d(2), nn.BatchNorm2d(outputs), nn.GELU())


def _conv(inputs: int, outputs: int) -> nn.Conv2d:
    """3x3, whose first weights pass the inputs on in as many of the outputs; the others are torch's."""
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(conv.weight[:inputs])
    return conv
