from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from shoal.data.decoder import Decoder

if TYPE_CHECKING:
    import torch

    from shoal.data.decoder import Jpeg
    from shoal.data.image import Bytes

_RGB = 3  # torchvision's ImageReadMode.RGB


class Nvjpeg(Decoder, frozen=True, kw_only=True):
    """NVIDIA's nvJPEG, by torchvision, on the worker's GPU: the cores crop and resize alone. Its pixels differ a little
    from the others', so that `auto` never takes it. What it cannot decode is left to torchvision's."""

    name: Literal["nvjpeg"] = "nvjpeg"

    EXACT: ClassVar[bool] = False

    def fits(self) -> str | None:
        import torch

        return None if torch.cuda.is_available() else "needs an NVIDIA GPU, and torch sees none here"

    def jpeg(self) -> Jpeg:
        import torch

        from shoal.data.decoders.torchvision import Torchvision

        other, device = Torchvision().jpeg(), torch.device("cuda", torch.cuda.current_device())
        frombuffer, uint8, decode_jpegs = torch.frombuffer, torch.uint8, torch.ops.image.decode_jpegs_cuda.default

        def jpeg(data: Bytes) -> torch.Tensor:
            try:
                return decode_jpegs([frombuffer(data, dtype=uint8)], _RGB, device)[0].cpu()
            except (torch.OutOfMemoryError, torch.AcceleratorError):
                raise
            except RuntimeError:
                return other(data)

        return jpeg
