"""SoftLabels: what a teacher says of every training image, in a file: its likeliest classes, in half precision."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from shoal.base.errors import ShoalError, UsageError, first_line

_FORMAT = "soft labels 1"
WORDS = {
    "data": "images",
    "teacher": "teacher's weights",
    "temperature": "temperature",
    "top_k": "task.top_k",
}
"""What a file is bound to, in its own words and in people's."""


@dataclass(frozen=True)
class SoftLabels:
    """Logarithms of probabilities; those of an image sum to 1 with `others`."""

    classes: np.ndarray
    """int [n, k], the likeliest first."""
    logs: np.ndarray
    """float16 [n, k]."""
    others: np.ndarray
    """float16 [n, 1]: of all other classes together; [n, 0] where there are none."""

    @staticmethod
    def of(logs: np.ndarray, top_k: int) -> SoftLabels:
        """logs: floating [n, classes]."""
        count = logs.shape[1]
        chosen = np.argsort(-logs, axis=1, kind="stable")[:, :top_k]
        kept = np.take_along_axis(logs, chosen, 1)
        others = np.zeros((len(logs), 0))
        if top_k < count:
            rest = logs.astype(np.float64)
            np.put_along_axis(rest, chosen, -np.inf, 1)
            others = np.logaddexp.reduce(rest, axis=1, keepdims=True)
        least = float(np.finfo(np.float16).min)
        numbers = np.uint16 if count <= 1 << 16 else np.int32
        halves = (np.maximum(held, least).astype(np.float16) for held in (kept, others))
        return SoftLabels(chosen.astype(numbers), *halves)

    def to_bytes(self, bound_to: dict[str, Any]) -> bytes:
        """bound_to: a value for each of WORDS."""
        arrays = {"classes": self.classes, "logs": self.logs, "others": self.others}
        told = {**bound_to, "format": _FORMAT, "sha256": _sum(arrays)}
        return save(arrays, metadata={"about": json.dumps(told, sort_keys=True)})

    @staticmethod
    def read(data: bytes, where: str, bound_to: dict[str, Any]) -> SoftLabels:
        """ShoalError: damaged. UsageError: of other images, of another teacher …"""
        try:
            about, arrays = _about(data), load(data)
            if about["format"] != _FORMAT:
                raise ValueError(f"format {about['format']!r}, this Shoal reads {_FORMAT!r}")
            if about["sha256"] != _sum(arrays):
                raise ValueError("its checksum is wrong")
        except Exception as error:  # whatever safetensors and json make of a damaged file
            reason = first_line(error)
            raise ShoalError(
                f"task.cache: {where} is damaged, or holds no soft labels ({reason}); remove it to have it made anew"
            ) from None
        other = [word for key, word in WORDS.items() if about.get(key) != bound_to[key]]
        if other:
            raise UsageError(
                f"task.cache: {where} was made for other {' and other '.join(other)} than this training's; "
                "name another file, or remove it to have it made anew"
            )
        return SoftLabels(arrays["classes"], arrays["logs"], arrays["others"])


def _about(data: bytes) -> dict[str, Any]:
    """The header of a safetensors file: 8 bytes of length, then JSON."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["about"])


def _sum(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in ("classes", "logs", "others"):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
