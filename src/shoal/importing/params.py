"""Params: MXNet's `.params`, a list of named arrays as `mx.nd.save` writes it. It is no pickle."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.base.errors import ShoalError

if TYPE_CHECKING:
    import numpy as np

LIST_MAGIC = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
"""What an array begins with: V1 (before MXNet 0.12), V2 (with a storage type), V3 (NumPy's shapes)."""
TYPES = ("<f4", "<f8", "<f2", "u1", "<i4", "i1", "<i8", "?")
"""NumPy's types by MXNet's numbers."""
MOST_DIMENSIONS = 32


def read(path: Path) -> dict[str, np.ndarray]:
    """Arrays by name, without the `arg:` and `aux:` that Module.save_checkpoint puts before them.

    ShoalError: not such a file, cut off, or with more in it than it says; the place is told in bytes.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ShoalError(f"{path}: cannot be read ({error.strerror})") from None
    reader = _Reader(path, data)
    if data[:1] == b"\x80" or data[:2] == b"PK":
        kind = "a pickle, which is never opened" if data[:1] == b"\x80" else "a zip file"
        raise ShoalError(f"{path}: this is {kind}; expected MXNet's list of arrays")
    magic, _ = reader.take("<QQ", "the file's head")
    if magic != LIST_MAGIC:
        raise ShoalError(f"{path}: no .params of MXNet: it begins with {magic:#x}, not {LIST_MAGIC:#x}")
    arrays = [reader.array() for _ in range(reader.count("arrays", 12))]
    names = [reader.name() for _ in range(reader.count("names", 8))]
    if len(names) != len(arrays):
        raise ShoalError(f"{path}: {len(arrays)} arrays with {len(names)} names; expected a name for each")
    if reader.at != len(data):
        raise ShoalError(f"{path}: {len(data) - reader.at} bytes too many behind byte {reader.at}")
    bare = [name.removeprefix("arg:").removeprefix("aux:") for name in names]
    if twice := next((name for name in bare if bare.count(name) > 1), None):
        raise ShoalError(f"{path}: {twice} is in it twice")
    return dict(zip(bare, arrays, strict=True))


class _Reader:
    """Bytes from front to back; every size is checked before anything is made of it."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self.data, self.at = path, data, 0

    def bytes(self, count: int, what: str) -> bytes:
        if count > len(self.data) - self.at:
            raise ShoalError(
                f"{self.path}: cut off at byte {len(self.data)}: {what} needs {count} bytes from byte {self.at}"
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def take(self, form: str, what: str) -> tuple[Any, ...]:
        return struct.unpack(form, self.bytes(struct.calcsize(form), what))

    def count(self, what: str, least_each: int) -> int:
        (count,) = self.take("<Q", f"the number of {what}")
        if count * least_each > len(self.data) - self.at:
            raise ShoalError(f"{self.path}: cut off or damaged: {count} {what} cannot be in {len(self.data)} bytes")
        return count

    def name(self) -> str:
        (length,) = self.take("<Q", "the length of a name")
        try:
            return self.bytes(length, "a name").decode()
        except UnicodeDecodeError:
            raise ShoalError(f"{self.path}: damaged: the name before byte {self.at} is no text") from None

    def array(self) -> np.ndarray:
        import numpy as np

        begin = self.at
        (magic,) = self.take("<I", "an array")
        if magic in (V2, V3):
            (storage,) = self.take("<i", "an array's storage type")
            if storage != 0:
                raise ShoalError(f"{self.path}: the array at byte {begin} is sparse; only dense ones are read")
            shape = self.shape("<i", "<q")
        elif magic == V1:
            shape = self.shape("<I", "<q")
        else:  # older than V1: the first number is that of the dimensions
            self.at = begin
            shape = self.shape("<I", "<I")
        if shape is None:
            return np.zeros(0, np.float32)
        self.take("<ii", "an array's device")
        (kind,) = self.take("<i", "an array's type")
        if not 0 <= kind < len(TYPES):
            raise ShoalError(f"{self.path}: damaged: the array at byte {begin} has type {kind}, which there is none of")
        dtype = np.dtype(TYPES[kind])
        held = self.bytes(
            math.prod(shape) * dtype.itemsize, f"the array of {'x'.join(map(str, shape))} at byte {begin}"
        )
        return np.frombuffer(held, dtype).reshape(shape)

    def shape(self, number: str, size: str) -> tuple[int, ...] | None:
        """None for an array that was never given a shape."""
        begin = self.at
        (dimensions,) = self.take(number, "an array's dimensions")
        if dimensions in (-1, 0):
            return None
        if not 0 < dimensions <= MOST_DIMENSIONS:
            raise ShoalError(f"{self.path}: damaged: an array of {dimensions} dimensions at byte {begin}")
        shape = self.take(f"<{dimensions}{size[1]}", "an array's shape")
        if any(side < 0 for side in shape) or math.prod(shape) > len(self.data):
            raise ShoalError(
                f"{self.path}: cut off or damaged: an array of {'x'.join(map(str, shape))} at byte {begin}"
            )
        return shape
