"""Compression of pushes: bytes as MXNet defines them, and nothing lost for good."""

from __future__ import annotations

import pytest
import torch

from shoal.base.errors import UsageError
from shoal.kvstore.compress import TYPES, codec


def sent(options: dict, values: torch.Tensor, encoder=None) -> tuple[torch.Tensor, torch.Tensor]:
    one = encoder or codec(options)
    data = one.encode(0, values).contiguous().view(torch.uint8)
    into = torch.full_like(values, 7.0)
    codec(options).decode(data, into)
    assert len(data) == one.nbytes(len(values), values.dtype)
    return data, into


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 100])
@pytest.mark.parametrize("kind", TYPES)
def test_any_size(kind, size):
    values = torch.randn(size)
    _, got = sent({"type": kind}, values)
    if kind == "none":
        assert torch.equal(got, values)
    if kind == "fp16":
        assert torch.equal(got, values.half().float())


def test_two_bits_lie_as_in_mxnet():
    values = torch.tensor([0.6, -0.7, 0.1, 0.5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -0.5])
    data, got = sent({"type": "2bit", "threshold": 0.5}, values)
    assert data.tolist() == [0b11_10_00_11, 0, 0, 0, 0b10_00_00_00, 0, 0, 0]
    assert got.tolist() == [0.5, -0.5, 0, 0.5, *[0] * 12, -0.5]


def test_what_is_left_out_comes_later():
    encoder = codec({"type": "2bit", "threshold": 0.5})
    values = torch.full((4,), 0.2)
    got = [sent({"type": "2bit", "threshold": 0.5}, values, encoder)[1][0].item() for _ in range(10)]
    assert sum(got) == 2.0 and got[:3] == [0, 0, 0.5]


def test_what_is_not_finite_leaves_no_trace():
    encoder = codec({"type": "2bit"})
    encoder.encode(0, torch.tensor([0.4]))
    _, got = sent({"type": "2bit"}, torch.tensor([torch.nan]), encoder)
    assert got.isnan().all(), "who receives it drops the step"
    assert encoder.encode(0, torch.tensor([0.2])).tolist() == [0b11000000, 0, 0, 0]


@pytest.mark.parametrize(
    "options",
    [{"type": "1bit"}, {"type": "2bit", "threshold": 0}, {"type": "fp16", "threshold": 1}, {"type": "2bit", "x": 1}],
)
def test_faults_are_told(options):
    with pytest.raises(UsageError):
        codec(options)


def test_a_scale_keeps_tiny_numbers():
    tiny = torch.tensor([1e-8, -3e-8, 2e-6])
    _, lost = sent({"type": "fp16"}, tiny)
    _, kept = sent({"type": "fp16", "scale": 1024.0}, tiny)
    assert lost[0] == 0
    torch.testing.assert_close(kept, tiny, rtol=5e-3, atol=0)
