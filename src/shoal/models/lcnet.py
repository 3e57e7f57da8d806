"""LCNet: PP-LCNet (Cui et al. 2021, arXiv 2109.15099), a net for CPUs, at widths that timm lacks."""

from __future__ import annotations

from torch import Tensor, nn

STAGES = (
    (3, 32, 1, False),
    *((3, 64, 2, False), (3, 64, 1, False)),
    *((3, 128, 2, False), (3, 128, 1, False)),
    (3, 256, 2, False),
    *((5, 256, 1, False),) * 5,
    *((5, 512, 2, True), (5, 512, 1, True)),
)
"""Kernel, channels at width 1, stride, squeeze-and-excitation of each block."""
HEAD = 1280
"""Features before the classifier, at any width."""


class LcNet(nn.Module):
    """Depthwise and pointwise convolutions with hard-swish, squeeze-and-excitation in the last two blocks only, and a
    wide layer after pooling.

    Images `[B, channels, H, W]` float, H and W at least 2 -> logits `[B, classes]`. With 1,000 classes and width 0.25
    it has 1.52 M parameters and 18 M multiply-adds per image of 224 pixels. `drop` is the dropout before the classifier
    (the paper's: 0.2).
    """

    def __init__(self, *, classes: int, channels: int = 3, width: float = 1.0, drop: float = 0.0) -> None:
        super().__init__()
        inputs = _wide(16, width)
        self.stem = _Norm(nn.Conv2d(channels, inputs, 3, stride=2, padding=1, bias=False))
        blocks: list[nn.Module] = []
        for kernel, outputs, stride, squeezed in STAGES:
            outputs = _wide(outputs, width)
            blocks += [
                _Norm(nn.Conv2d(inputs, inputs, kernel, stride, kernel // 2, groups=inputs, bias=False)),
                *([_Squeeze(inputs)] if squeezed else []),
                _Norm(nn.Conv2d(inputs, outputs, 1, bias=False)),
            ]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.widen = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(inputs, HEAD, 1), nn.Hardswish(), nn.Flatten())
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(HEAD, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.drop(self.widen(self.blocks(self.stem(images)))))


class _Norm(nn.Sequential):
    def __init__(self, conv: nn.Conv2d) -> None:
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        super().__init__(conv, nn.BatchNorm2d(conv.out_channels), nn.Hardswish())


class _Squeeze(nn.Module):
    """Scales each channel by what the means of all channels say (Hu et al. 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, channels // 4, 1),
            nn.ReLU(),
            nn.Conv2d(channels // 4, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale(x)


def _wide(channels: int, width: float) -> int:
    """The nearest multiple of 8, at least 8, and not less than nine tenths of what was asked for."""
    nearest = max(8, int(channels * width + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels * width else nearest
