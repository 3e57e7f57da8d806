"""CifarResNet: the residual nets for 32x32 images, in their first and their pre-activation form."""

from __future__ import annotations

from torch import Tensor, nn

from shoal.models.residual import (
    MXNET_EPS,
    PostActivationUnit,
    PreActivationUnit,
    fixed_scale,
    norm_relu,
    start_from_fan_in,
)

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
        stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        layers: list[nn.Module] = [fixed_scale(channels), stem] if pre_activation else [stem, *norm_relu(16)]
        width = 16
        for stage in range(STAGES):
            outputs = 16 * 2**stage * (4 if bottleneck else 1)
            for index in range(units):
                skip = drop_path * (stage * units + index + 1) / (STAGES * units)
                stride = 2 if stage > 0 and index == 0 else 1
                made = width, outputs, stride
                if pre_activation:
                    layers.append(PreActivationUnit(*made, adapt=index == 0, bottleneck=bottleneck, skip=skip))
                else:
                    adapt = None if width == outputs else "project" if bottleneck else "pad"
                    layers.append(PostActivationUnit(*made, adapt=adapt, bottleneck=bottleneck, skip=skip))
                width = outputs
        if pre_activation:
            layers += norm_relu(width, MXNET_EPS)
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(width, classes)
        if pre_activation:
            start_from_fan_in(self)
        else:
            for layer in self.modules():
                if isinstance(layer, nn.Conv2d):
                    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.drop(self.features(images)))
