"""CifarResNet: the residual nets for 32x32 images, in their first and their pre-activation form."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STAGES = 3


class CifarResNet(nn.Module):
    """Three stages of `units` residual units; every stage but the first halves the image and doubles the width.

    Images `[B, channels, H, W]` float -> logits `[B, classes]`. Basic units (two 3x3 convolutions, 16-32-64 wide) make
    6·units+2 layers, bottleneck units (1x1, 3x3, 1x1; 64-128-256 wide) 9·units+2.

    First form (He et al. 2015, arXiv 1512.03385 §4.2): conv-bn-relu units and a relu after the sum. Shortcuts without
    parameters where basic units change shape (option A), projections where bottleneck units do. Convolutions start
    from N(0, 2/fan_out), the head as torch's.

    Pre-activation (He et al. 2016, arXiv 1603.05027): the net MXNet's image-classification example builds for images
    of at most 28 pixels, layer by layer: BatchNorm of the input with its scale fixed at 1, a projection from the
    activated input in the first unit of *every* stage, BatchNorm eps 2e-5, all weights from N(0, 2/fan_in) (that
    example's `Xavier(gaussian, in, 2)`). The fixed scale is a parameter that wants no gradient.

    `drop` is the dropout before the head; `drop_path` the chance to skip the last unit, falling linearly towards the
    first (stochastic depth, Huang et al. 2016, arXiv 1603.09382).
    """

    def __init__(
        self,
        *,
        units: int,
        bottleneck: bool,
        pre_activation: bool,
        classes: int,
        channels: int = 3,
        drop: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        unit = PreActivationUnit if pre_activation else PostActivationUnit
        stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        layers: list[nn.Module] = [_fixed_scale(channels), stem] if pre_activation else [stem, *_norm_relu(16)]
        width = 16
        for stage in range(STAGES):
            outputs = 16 * 2**stage * (4 if bottleneck else 1)
            for index in range(units):
                skip = drop_path * (stage * units + index + 1) / (STAGES * units)
                stride = 2 if stage > 0 and index == 0 else 1
                adapt = index == 0 and (pre_activation or width != outputs)
                layers.append(unit(width, outputs, stride, adapt=adapt, bottleneck=bottleneck, skip=skip))
                width = outputs
        if pre_activation:
            layers += [nn.BatchNorm2d(width, eps=PRE_EPS), nn.ReLU(inplace=True)]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(width, classes)
        self._start_weights("fan_in" if pre_activation else "fan_out")

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.drop(self.features(images)))

    def _start_weights(self, mode: str) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode=mode, nonlinearity="relu")  # type: ignore[arg-type]
        if mode == "fan_in":
            nn.init.kaiming_normal_(self.head.weight, nonlinearity="relu")
        nn.init.zeros_(self.head.bias)


PRE_EPS = 2e-5
"""BatchNorm's eps in the pre-activation net."""


class PostActivationUnit(nn.Module):
    """relu(shortcut(x) + conv-bn(-relu-conv-bn…)(x)): the first form. With `adapt` the shortcut changes shape."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, adapt: bool, bottleneck: bool, skip: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for conv in _convs(inputs, outputs, stride, bottleneck):
            layers += [conv, *_norm_relu(conv.out_channels)]
        self.branch = nn.Sequential(*layers[:-1])  # the last relu comes after the sum
        self.skip = DropPath(skip)
        self.shortcut: nn.Module = nn.Identity()
        if adapt:
            self.shortcut = _projection(inputs, outputs, stride) if bottleneck else ZeroPadded(outputs - inputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.skip(self.branch(x)), inplace=True)


class PreActivationUnit(nn.Module):
    """x + conv(-bn-relu-conv…)(a) with a = relu(bn(x)); with `adapt` the shortcut is a projection of a."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, adapt: bool, bottleneck: bool, skip: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs, eps=PRE_EPS)
        layers: list[nn.Module] = []
        for conv in _convs(inputs, outputs, stride, bottleneck):
            layers += [conv, nn.BatchNorm2d(conv.out_channels, eps=PRE_EPS), nn.ReLU(inplace=True)]
        self.branch = nn.Sequential(*layers[:-2])  # ends with a convolution
        self.skip = DropPath(skip)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if adapt else None

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.norm(x), inplace=True)
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        return self.skip(self.branch(activated)).add_(shortcut)  # nobody needs a convolution's output again


class ZeroPadded(nn.Module):
    """A shortcut without parameters: every `stride`-th pixel, and `extra` channels of zeros behind the others."""

    def __init__(self, extra: int, stride: int) -> None:
        super().__init__()
        self.extra, self.stride = extra, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))


class DropPath(nn.Module):
    """While training, a branch is zero for an image with chance `drop_prob`; what stays is scaled by 1/(1-drop_prob).

    Called, and with attributes called, as timm's, so that who replaces the randomness of one replaces that of both.
    """

    scale_by_keep = True

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.drop_prob == 0:
            return x
        kept = torch.rand(x.shape[0], 1, 1, 1, device=x.device) >= self.drop_prob
        return x * kept / (1 - self.drop_prob)


def _convs(inputs: int, outputs: int, stride: int, bottleneck: bool) -> list[nn.Conv2d]:
    """The convolutions of one unit; the 3x3 (of basic units: the first) takes the stride."""
    if not bottleneck:
        return [
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        ]
    inner = outputs // 4
    return [
        nn.Conv2d(inputs, inner, 1, bias=False),
        nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False),
        nn.Conv2d(inner, outputs, 1, bias=False),
    ]


def _projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def _norm_relu(width: int) -> tuple[nn.Module, nn.Module]:
    return nn.BatchNorm2d(width), nn.ReLU(inplace=True)


def _fixed_scale(channels: int) -> nn.BatchNorm2d:
    """BatchNorm that learns a shift but keeps its scale at 1, as MXNet's `fix_gamma`."""
    norm = nn.BatchNorm2d(channels, eps=PRE_EPS)
    norm.weight.requires_grad_(False)
    return norm
