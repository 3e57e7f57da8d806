"""Units of links as people write them: 25Gbps, 1GB/s, 20us. What could mean two things is refused."""

from __future__ import annotations

import math
import re

from shoal.base.errors import UsageError

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_BITS = re.compile(rf"{_NUMBER} ?([kMGT]?)(?:bps|bit/s|bit)")
_BYTES = re.compile(rf"{_NUMBER} ?((?:[kMGT]|[KMG]i)?)B/s")
_TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0}
_TIME = re.compile(rf"{_NUMBER} ?(ns|us|µs|μs|ms|s)")
_RATE = re.compile(rf"{_NUMBER}(?: ?(?:im|images)/s)?")


def bytes_per_s(text: str) -> float:
    """`25Gbps`, `100Mbit/s`, `1GB/s`, `900MiB/s` -> bytes in a second, more than 0; UsageError says what is right."""
    for form, size in ((_BITS, 1 / 8), (_BYTES, 1.0)):
        if found := form.fullmatch(text.strip()):
            return _positive(float(found[1]) * _SCALES[found[2]] * size, f"--link {text}")
    raise UsageError(f"--link {text}: no rate; expected bits as in 25Gbps or bytes as in 1GB/s")


def seconds(text: str) -> float:
    """`20us`, `0.1ms`, `0s` -> seconds, 0 or more."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--latency {text}: no time; expected one as in 20us or 0.1ms")
    value = float(found[1]) * _TIMES[found[2]]
    if not math.isfinite(value):
        raise UsageError(f"--latency {text}: too long")
    return value


def images_per_s(text: str) -> float:
    """`2500` or `2500im/s` -> images in a second, more than 0."""
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--rate {text}: no speed; expected images a second of one worker as in 2500im/s")
    return _positive(float(found[1]), f"--rate {text}")


def counts(text: str) -> tuple[int, ...]:
    """`8,64,1024` -> numbers of workers, each once, rising."""
    found = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in found):
        raise UsageError(f"--workers {text}: expected numbers of workers as in 8,64,1024")
    if len({int(part) for part in found}) < len(found):
        raise UsageError(f"--workers {text}: a number is there twice")
    if max(map(int, found)) > MOST_WORKERS:
        raise UsageError(f"--workers {text}: at most {MOST_WORKERS:,}")
    return tuple(sorted(map(int, found)))


MOST_WORKERS = 100_000


def shown_rate(bytes_a_second: float) -> str:
    """As networks are sold: in bits."""
    bits = bytes_a_second * 8
    scale = next((letter for letter in "TGMk" if bits >= 0.9999 * _SCALES[letter]), "")
    return f"{bits / _SCALES[scale]:.4g}{scale}bit/s"


def shown_bytes(nbytes: float) -> str:
    scale = next((letter for letter in "TGMk" if nbytes >= 0.9999 * _SCALES[letter]), "")
    return f"{nbytes / _SCALES[scale]:.3g} {scale}B"


def shown_time(time_s: float) -> str:
    """Three digits in the largest unit of which there is one."""
    if time_s >= 7200:
        return f"{time_s / 3600:.3g} h"
    if time_s >= 120:
        return f"{time_s / 60:.3g} min"
    unit = next((unit for unit in ("s", "ms", "us") if time_s >= 0.9999 * _TIMES[unit]), "ns")
    return f"{time_s / _TIMES[unit]:.3g} {unit}" if time_s else "0 s"


def _positive(value: float, said: str) -> float:
    if not 0 < value < math.inf:
        raise UsageError(f"{said}: must be more than 0")
    return value
