"""Decoder: the library that makes pixels of JPEGs. All on a CPU make the same, so each machine may have its own."""

from __future__ import annotations

from abc import abstractmethod
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from shoal.base.errors import UsageError
from shoal.recipe.part import Part

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from shoal.data.image import Bytes

    Jpeg = Callable[[Bytes], torch.Tensor]


class Decoder(Part, frozen=True, kw_only=True):
    """What every decoder can do."""

    SEAM: ClassVar[str] = "decoders"
    EXACT: ClassVar[bool] = True
    """Whether its pixels are those of libjpeg-turbo, to the last bit."""

    @abstractmethod
    def fits(self) -> str | None:
        """None where it can be used here, else what is missing and how to get it."""

    @abstractmethod
    def jpeg(self) -> Jpeg:
        """Makes uint8 [3, H, W] of a JPEG's bytes, from many threads at once; ImageError where it cannot be read whole.
        What it imports is imported now."""

    def why(self) -> str:
        """Which one is used here, and why."""
        return f"JPEG decoder: {self.name} (data.decoder)"

    def ready(self) -> Jpeg:
        """As `jpeg`; UsageError where it cannot be used here."""
        if missing := self.fits():
            raise UsageError(f"data.decoder: {self.name}: {missing}")
        return self.jpeg()


@cache
def usual() -> Jpeg:
    """What decodes where no recipe says which."""
    from shoal.data.decoders.auto import Auto

    return Auto().ready()
