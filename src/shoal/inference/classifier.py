"""Classifier: a trained model with its preprocessing and the names of its classes, as a torch module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from shoal.base.errors import UsageError
from shoal.base.host import cores
from shoal.data.batches import eval_chunks
from shoal.data.decode import Pictures
from shoal.data.image import ImageError
from shoal.inference.given import Given
from shoal.inference.sharing import sharing
from shoal.train.restored import Restored

if TYPE_CHECKING:
    from shoal.inference.given import Picture


class Guess(NamedTuple):
    """A class, and how probable the model finds it (0 to 1)."""

    name: str
    probability: float


class Seen(NamedTuple):
    """What the model makes of one image."""

    guesses: tuple[Guess, ...]
    """The most probable first; none where the image cannot be used."""
    fault: ImageError | None = None
    """Why it cannot."""


class Classifier(torch.nn.Module):
    """uint8 [B, C, h, w], pixels as `prepare` makes them -> logits [B, classes]; in evaluation mode.

    predict(["a.jpg", …]) takes files, bytes, Pillow images or pixels of any size, and gives names with probabilities.
    """

    def __init__(self, restored: Restored) -> None:
        super().__init__()
        self.model, self.inputs = restored.model, restored.inputs
        self._precision, self._net = restored.precision, (restored.net,)  # no module of this one: it shares the model
        self.classes = restored.classes
        """Names, by output."""
        self.checkpoint = restored.path
        self.recipe, self.manifest = restored.recipe, restored.manifest
        self.eval()

    @property
    def device(self) -> torch.device:
        return self.inputs.scale.device

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width of what the model sees; 0, 0 where it takes images of any size."""
        channels, *plane = self.manifest["shape"]
        return (channels, *self._augment.seen(*plane))

    @property
    def _augment(self) -> Any:
        return self.recipe.data.augment  # type: ignore[attr-defined]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with self._precision.context(self.device):
            return self._net[0](self.inputs(images))

    def prepare(self, *pictures: Picture) -> torch.Tensor:
        """uint8 [n, C, h, w]: resized and cut as validation images were. ImageError: an image that cannot be used."""
        given = self.given(pictures)
        images, _ = Pictures(given, self._augment).val(torch.arange(len(pictures)).numpy())
        for index, fault in sorted(given.faults.items()):
            named = pictures[index] if isinstance(pictures[index], (str, Path)) else f"image {index}"
            raise ImageError(f"{named} {fault}")
        return torch.from_numpy(images)

    def predict(self, pictures: Sequence[Picture], top: int = 5) -> list[tuple[Guess, ...]]:
        """The `top` most probable classes of each image, the most probable first. ImageError: as `prepare`."""
        if isinstance(pictures, (str, Path, bytes)):
            pictures = [pictures]
        found = []
        for index, seen in enumerate(self.look(pictures, top=top)):
            if seen.fault is not None:
                named = pictures[index] if isinstance(pictures[index], (str, Path)) else f"image {index}"
                raise ImageError(f"{named} {seen.fault}")
            found.append(seen.guesses)
        return found

    def look(
        self, pictures: Sequence[Picture], *, top: int, batch: int = 64, threads: int | None = None
    ) -> Iterator[Seen]:
        """One Seen per image, in their order; images are decoded by `threads` (as many as cores) while the model looks
        at those before them, `batch` at a time."""
        given = self.given(pictures)
        top = min(top, len(self.classes))
        chunks = eval_chunks(given, self._augment, batch, threads=cores() if threads is None else threads)
        for _, chunk in sharing(chunks):
            with torch.inference_mode():
                shares = self(chunk.images.to(self.device)).softmax(1, dtype=torch.float32).cpu()
            probable, places = shares.topk(top, dim=1)
            for index, row, numbers in zip(chunk.indices.tolist(), probable.tolist(), places.tolist(), strict=True):
                fault = given.faults.get(index)
                names = [] if fault else [Guess(self.classes[n], share) for n, share in zip(numbers, row, strict=True)]
                yield Seen(tuple(names), fault)

    def given(self, pictures: Sequence[Picture]) -> Given:
        """The pictures in the form of the training's images before its crops."""
        shape = self.manifest["shape"]
        side = getattr(self.recipe.data, "image_size", None)
        if not shape[1] and not self._augment.size and not side:
            raise UsageError(f"{self.checkpoint}: its recipe says no size that images are brought to")
        return Given(pictures, shape=shape, mean=self.manifest["mean"], std=self.manifest["std"], image_size=side)


def load(checkpoint: str | Path, *, raw: bool = False, device: str | torch.device | None = None) -> Classifier:
    """The model of a checkpoint, or of a run (its best), ready to judge images.

    raw: the weights themselves where the checkpoint has a moving average. device: absent: the first CUDA device, else
    the CPU. UsageError: no checkpoint there; ShoalError: a damaged one.
    """
    return Classifier(Restored(Path(checkpoint), raw=raw, device=None if device is None else torch.device(device)))
