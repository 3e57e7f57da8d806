from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from shoal.data.decoder import Decoder
from shoal.data.image import jpeg_frame

if TYPE_CHECKING:
    import torch

    from shoal.data.decoder import Jpeg
    from shoal.data.image import Bytes

_CMYK = 4  # colours


class Simplejpeg(Decoder, frozen=True, kw_only=True):
    """simplejpeg, on libjpeg-turbo too: twice as fast for small images. What it finds doubtful (damaged files, CMYK) is
    left to torchvision's, so that both take and refuse the same."""

    name: Literal["simplejpeg"] = "simplejpeg"

    def fits(self) -> str | None:
        return None if find_spec("simplejpeg") else "not installed here: pip install simplejpeg"

    def jpeg(self) -> Jpeg:
        from simplejpeg import decode_jpeg
        from torch import from_numpy

        from shoal.data.decoders.torchvision import Torchvision

        other = Torchvision().jpeg()

        def jpeg(data: Bytes) -> torch.Tensor:
            if jpeg_frame(data)[2] == _CMYK:  # it has colours of its own for them
                return other(data)
            try:
                return from_numpy(decode_jpeg(data)).permute(2, 0, 1)
            except ValueError:
                return other(data)

        return jpeg
