"""Residual units, in their first and their pre-activation form, and stochastic depth."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MXNET_EPS = 2e-5
"""BatchNorm's eps in the nets of MXNet's image-classification example."""


class PostActivationUnit(nn.Module):
    """relu(shortcut(x) + conv-bn(-relu-conv-bn…)(x)): the first form.

    adapt: the shortcut changes shape: None not at all, "pad" without parameters (option A of the paper), "project"
    by a convolution with BatchNorm. strided: which convolution of a bottleneck takes the stride. bias: whether a
    bottleneck's 1x1 convolutions have one (Gluon's do).
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        *,
        adapt: str | None,
        bottleneck: bool,
        skip: float,
        eps: float = 1e-5,
        strided: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for conv in _convs(inputs, outputs, stride, bottleneck, strided, bias):
            layers += [conv, *norm_relu(conv.out_channels, eps)]
        self.branch = nn.Sequential(*layers[:-1])  # the last relu comes after the sum
        self.skip = DropPath(skip)
        self.shortcut: nn.Module = nn.Identity()
        if adapt == "pad":
            self.shortcut = ZeroPadded(outputs - inputs, stride)
        elif adapt == "project":
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs, eps=eps))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.skip(self.branch(x)), inplace=True)


class PreActivationUnit(nn.Module):
    """x + conv(-bn-relu-conv…)(a) with a = relu(bn(x)); with `adapt` the shortcut is a projection of a."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        *,
        adapt: bool,
        bottleneck: bool,
        skip: float,
        eps: float = MXNET_EPS,
    ) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs, eps=eps)
        layers: list[nn.Module] = []
        for conv in _convs(inputs, outputs, stride, bottleneck):
            layers += [conv, *norm_relu(conv.out_channels, eps)]
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


def norm_relu(width: int, eps: float = 1e-5) -> tuple[nn.Module, nn.Module]:
    return nn.BatchNorm2d(width, eps=eps), nn.ReLU(inplace=True)


def fixed_scale(channels: int, eps: float = MXNET_EPS) -> nn.BatchNorm2d:
    """BatchNorm that learns a shift but keeps its scale at 1, as MXNet's `fix_gamma`."""
    norm = nn.BatchNorm2d(channels, eps=eps)
    norm.weight.requires_grad_(False)
    return norm


def start_from_fan_in(model: nn.Module) -> None:
    """Convolutions and linear layers from N(0, 2/fan_in), their biases from 0: MXNet's `Xavier(gaussian, in, 2)`."""
    for layer in model.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _convs(
    inputs: int, outputs: int, stride: int, bottleneck: bool, strided: int = 1, bias: bool = False
) -> list[nn.Conv2d]:
    """The convolutions of one unit; of a bottleneck's three, number `strided` takes the stride, else the first."""
    if not bottleneck:
        return [
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        ]
    inner = outputs // 4
    strides = [stride if number == strided else 1 for number in range(3)]
    return [
        nn.Conv2d(inputs, inner, 1, strides[0], bias=bias),
        nn.Conv2d(inner, inner, 3, strides[1], padding=1, bias=False),
        nn.Conv2d(inner, outputs, 1, strides[2], bias=bias),
    ]
