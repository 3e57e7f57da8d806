"""All-reduce against figures reckoned by hand, and what the backward pass hides of it."""

from __future__ import annotations

import pytest

from shoal.forecast.allreduce import all_reduce_s, buckets, exposed_s, gather_s
from shoal.forecast.calibration import Calibration, Network


def calibration(**known: object) -> Calibration:
    return Calibration(source="", images_per_epoch=1, parameters=1, gradient_bytes=4, image_s=1.0, **known)  # type: ignore[arg-type]


FREE = calibration(device="cuda")
LINK = Network(byte_s=1e-9, latency_s=1e-5)


def test_ring_and_tree() -> None:
    assert all_reduce_s(1e8, 4, FREE, LINK) == pytest.approx(6e-5 + 1.5 * 0.1)
    assert all_reduce_s(1e8, 4, FREE, LINK, "tree") == pytest.approx(4e-5 + 1.5 * 0.1)
    assert all_reduce_s(1e8, 1024, FREE, LINK) == pytest.approx(2046e-5 + 2 * 1023 / 1024 * 0.1)
    assert all_reduce_s(1e8, 1024, FREE, LINK, "tree") == pytest.approx(20e-5 + 2 * 1023 / 1024 * 0.1)
    assert all_reduce_s(1e8, 1, FREE, LINK) == 0


def test_workers_of_one_host_do_not_use_the_link() -> None:
    here = calibration(hop_s=1e-6, sum_byte_s=2e-10)
    packed = Network(byte_s=1e-9, latency_s=1e-5, per_host=8)
    assert all_reduce_s(1e6, 8, here, packed) == pytest.approx(14e-6 + 1.75 * 2e-4)
    assert all_reduce_s(1e6, 16, here, packed) == pytest.approx(30e-6 + 2 * 30e-5 + 1.875e-3)
    assert all_reduce_s(1e6, 16, here, packed, "tree") == pytest.approx(8e-6 + 2 * 2e-5 + 1.875e-3)


def test_software_binds_where_it_is_slower_than_the_link() -> None:
    slow = calibration(sum_byte_s=5e-9)
    assert all_reduce_s(1e6, 2, slow, LINK) == pytest.approx(4e-5 + 5e-3)


def test_gloo_sends_when_the_other_end_is_ready() -> None:
    """A word that says so, and then the bytes: two flights for each message."""
    assert all_reduce_s(8, 2, calibration(), LINK) == pytest.approx(2 * 2 * 1e-5, rel=1e-3)
    assert all_reduce_s(8, 2, FREE, LINK) == pytest.approx(2 * 1e-5, rel=1e-3)
    assert gather_s(8, 4, calibration(), LINK, pieces=2) == pytest.approx(3 * 2 * 2e-5, rel=1e-3)


def test_buckets_begin_small_and_lose_nothing() -> None:
    gradients = [(400_000, 0.4), (400_000, 0.5), (400_000, 0.6), (3_000_000, 0.8), (10, 1.0)]
    made = buckets(gradients)
    assert made == [(1_200_000, 0.6), (3_000_010, 1.0)]
    assert sum(size for size, _ in buckets(gradients, 1)) == sum(size for size, _ in gradients)
    assert len(buckets(gradients, 1000)) == 1, "a size that is said holds for the first bucket, too"
    assert buckets([]) == []


def test_only_what_comes_late_is_exposed() -> None:
    early, late = (1_000_000, 0.5), (1_000_000, 1.0)
    one = all_reduce_s(1e6, 2, FREE, LINK)
    assert exposed_s([late], 0.1, 2, FREE, LINK) == pytest.approx(one)
    assert exposed_s([early, late], 0.1, 2, FREE, LINK) == pytest.approx(one)
    assert exposed_s([early, late], 0.0001, 2, FREE, LINK) == pytest.approx(2 * one - 0.00005)
    assert exposed_s([early], 0.1, 2, FREE, LINK) == 0


def test_a_processor_that_moves_bytes_does_not_compute() -> None:
    busy = calibration(core_byte_s=4e-10, core_hop_s=5e-5)
    early, late = (1_000_000, 0.5), (1_000_000, 1.0)
    assert exposed_s([early], 0.1, 2, busy, LINK) == pytest.approx(5e-4)
    one = all_reduce_s(1e6, 2, busy, LINK)
    assert exposed_s([early, late], 0.1, 2, busy, LINK) == pytest.approx(5e-4 + one)
    # A link that is not done when the passes end does not wait for cores that helped it before.
    assert exposed_s([(1_000_000, 0.0), late], one / 2, 2, busy, LINK) == pytest.approx(1.5 * one)
