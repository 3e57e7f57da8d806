"""What the torch-based peers train: the lab's net, on pictures that are cropped and mirrored one by one."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms

from shoal.recipe.load import load
from shoal.train.setup import make_model

TRANSFORM = transforms.Compose(
    [
        transforms.RandomCrop(28, padding=2),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26)),
    ]
)


class Made(Dataset):
    """Pictures of 32 x 32 px in memory, as torchvision's CIFAR10 holds them."""

    def __init__(self, count: int) -> None:
        self.images = np.random.default_rng(1).integers(0, 256, (count, 32, 32, 3), np.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return TRANSFORM(Image.fromarray(self.images[index])), index % 10  # pyright: ignore[reportReturnType]


def net() -> torch.nn.Module:
    recipe = load("cifar10-resnet8", ["data=synthetic"]).recipe
    return make_model(recipe, 10, 3, pretrained=False).module


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
