"""MxnetResNet: the residual nets that MXNet trained on ImageNet, in its example and in Gluon."""

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

UNITS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
    269: (3, 30, 48, 8),
}
"""Residual units of each stage, by depth; bottlenecks from 50 on."""


class MxnetResNet(nn.Module):
    """A 7x7 stem and max-pooling, then four stages, of which every one but the first halves the image.

    Images `[B, channels, H, W]` float, H and W at least 32 -> logits `[B, classes]`.

    Version 1 (He et al. 2015, arXiv 1512.03385): relu(shortcut + branch). A bottleneck strides in its first 1x1
    convolution, as the paper's did, where torchvision's and timm's stride in the 3x3.

    Version 2 (He et al. 2016, arXiv 1603.05027): BatchNorm of the images with its scale fixed at 1, then again behind
    the stem (timm's resnetv2 has neither), and pre-activation units.

    Of the example (symbols/resnet.py, resnet-v1.py): BatchNorm eps 2e-5, a projection in the first unit of *every*
    stage. `gluon` (model_zoo.vision): eps 1e-5, a projection only where widths differ; the BatchNorm of the images
    learns no shift either; version 1's 1x1 convolutions have biases.

    Weights start as in the example, for both. `drop` is the dropout before the head; `drop_path` the chance to skip
    the last unit, falling linearly towards the first.
    """

    def __init__(
        self,
        *,
        depth: int,
        version: int,
        gluon: bool,
        classes: int,
        channels: int = 3,
        drop: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        units, bottleneck, eps = UNITS[depth], depth >= 50, 1e-5 if gluon else MXNET_EPS
        layers: list[nn.Module] = []
        if version == 2:
            layers.append(fixed_scale(channels, eps))
            layers[0].bias.requires_grad_(not gluon)  # type: ignore[union-attr]
        layers += [nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False), *norm_relu(64, eps)]
        layers.append(nn.MaxPool2d(3, 2, padding=1))
        width, begun = 64, 0
        for stage, count in enumerate(units):
            outputs = 64 * 2**stage * (4 if bottleneck else 1)
            for index in range(count):
                begun += 1
                shape = width, outputs, 2 if stage > 0 and index == 0 else 1
                adapt = index == 0 and (not gluon or width != outputs)
                skip = drop_path * begun / sum(units)
                if version == 2:
                    layers.append(PreActivationUnit(*shape, adapt=adapt, bottleneck=bottleneck, skip=skip, eps=eps))
                else:
                    layers.append(
                        PostActivationUnit(
                            *shape,
                            adapt="project" if adapt else None,
                            bottleneck=bottleneck,
                            skip=skip,
                            eps=eps,
                            strided=0,
                            bias=gluon,
                        )
                    )
                width = outputs
        if version == 2:
            layers += norm_relu(width, eps)
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(width, classes)
        start_from_fan_in(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.drop(self.features(images)))
