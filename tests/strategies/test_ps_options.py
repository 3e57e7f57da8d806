"""What a recipe may say of parameter servers together."""

from __future__ import annotations

import pytest

from shoal.strategies.ps import Ps


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"mode": "async", "deterministic": True}, "deterministic"),
        ({"compress": "fp16", "deterministic": True}, "compress"),
        ({"compress": "2bit", "mode": "async"}, None),
    ],
)
def test_faults(options: dict, key: str | None) -> None:
    assert [name for name, _ in Ps(**options).faults()] == ([key] if key else [])


def test_compression_counts_in_sums_over_a_batch() -> None:
    assert Ps()._compression(100) == {}
    assert Ps(compress="fp16")._compression(100) == {"type": "fp16", "scale": 64.0}
    assert Ps(compress="2bit", threshold=0.25)._compression(100) == {"type": "2bit", "threshold": 0.0025}
