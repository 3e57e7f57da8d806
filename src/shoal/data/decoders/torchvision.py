from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal

from shoal.data.decoder import Decoder
from shoal.data.image import Bytes, ImageError, reason

if TYPE_CHECKING:
    import torch

    from shoal.data.decoder import Jpeg

_RGB = 3  # torchvision's ImageReadMode.RGB


class Torchvision(Decoder, frozen=True, kw_only=True):
    """torchvision's, on libjpeg-turbo; it comes with Shoal."""

    name: Literal["torchvision"] = "torchvision"

    def fits(self) -> str | None:
        return None

    def jpeg(self) -> Jpeg:
        import torch
        import torchvision.io  # noqa: F401  (brings the operator)

        # What torchvision.io.decode_jpeg calls: its own checks, and its warning at every call that it will move to
        # TorchCodec, cost a fifth of the time of a small image.
        frombuffer, uint8, decode_jpeg = torch.frombuffer, torch.uint8, torch.ops.image.decode_jpeg.default
        with warnings.catch_warnings():  # told once per process: that nobody may write into bytes, which nobody does
            warnings.simplefilter("ignore")
            frombuffer(b"x", dtype=uint8)

        def jpeg(data: Bytes) -> torch.Tensor:
            try:
                return decode_jpeg(frombuffer(data, dtype=uint8), _RGB, False)
            except RuntimeError as error:
                raise ImageError(f"is a JPEG that cannot be decoded ({reason(error)})") from None

        return jpeg
