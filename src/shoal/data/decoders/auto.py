from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from shoal.data.decoder import Decoder
from shoal.data.decoders.simplejpeg import Simplejpeg
from shoal.data.decoders.torchvision import Torchvision

if TYPE_CHECKING:
    from shoal.data.decoder import Jpeg


class Auto(Decoder, frozen=True, kw_only=True):
    """The fastest that is installed here."""

    name: Literal["auto"] = "auto"

    def fits(self) -> str | None:
        return None

    def jpeg(self) -> Jpeg:
        return self._chosen()[0].jpeg()

    def why(self) -> str:
        chosen, why = self._chosen()
        return f"JPEG decoder: {chosen.name} ({why}; the pixels are the same)"

    def _chosen(self) -> tuple[Decoder, str]:
        fastest = Simplejpeg()
        if missing := fastest.fits():
            return Torchvision(), f"simplejpeg would be faster, but is {missing}"
        return fastest, "the fastest that is installed"
