"""DigitsCnn: a small net that learns the 8x8 digits in seconds on one core."""

from __future__ import annotations

from torch import Tensor, nn


class DigitsCnn(nn.Module):
    """Four 3x3 convolutions with BatchNorm, one max-pool between them, a global max-pool, a linear head.

    Images `[B, channels, H, W]` float, H and W at least 2 -> logits `[B, classes]`. With 10 classes, one channel and
    width 16 it has 33,338 parameters. `drop` is the dropout before the head. Weights start as torch's layers do.
    """

    def __init__(self, *, classes: int, channels: int = 1, width: int = 16, drop: float = 0.0) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_conv_norm_relu(channels, width),
            *_conv_norm_relu(width, 2 * width),
            nn.MaxPool2d(2),
            *_conv_norm_relu(2 * width, 2 * width),
            *_conv_norm_relu(2 * width, 4 * width),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
        )
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.drop(self.features(images)))


def _conv_norm_relu(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
