"""Soft labels on disk: what is kept of them, and that no other file passes for them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.errors import ShoalError, UsageError
from shoal.data.fingerprint import fingerprint
from shoal.data.soft_labels import SoftLabels
from shoal.data.source import Streamed
from shoal.data.sources.digits import Digits
from small_images import jpeg

BOUND = {"data": "d", "teacher": "t", "temperature": 4.0, "top_k": 3}


def logs(count: int = 20, classes: int = 8, scale: float = 4.0) -> np.ndarray:
    """float64 [n, classes] of probabilities that sum to 1."""
    drawn = scale * np.random.default_rng(0).standard_normal((count, classes))
    return drawn - np.log(np.exp(drawn).sum(1, keepdims=True))


def test_the_likeliest_classes_and_all_others_together():
    given = logs()
    held = SoftLabels.of(given, 3)
    assert np.array_equal(held.classes, np.argsort(-given, 1)[:, :3])
    kept = np.exp(held.logs.astype(float)).sum(1)
    assert kept + np.exp(held.others.astype(float))[:, 0] == pytest.approx(np.ones(20), abs=2e-3)
    assert (held.classes.dtype, held.logs.dtype, held.others.dtype) == (np.uint16, np.float16, np.float16)
    assert held.logs.astype(float) == pytest.approx(np.sort(given, 1)[:, :-4:-1], rel=1e-3)


def test_no_others_where_all_are_kept():
    held = SoftLabels.of(logs(), 8)
    assert held.others.shape == (20, 0) and np.exp(held.logs.astype(float)).sum(1) == pytest.approx(1, abs=2e-3)


def test_a_class_beyond_half_precision_stays_a_number():
    given = np.array([[0.0, -1e6, -1e9]])
    held = SoftLabels.of(given, 2)
    assert np.isfinite(held.logs).all() and np.isfinite(held.others).all()


def test_there_and_back():
    held = SoftLabels.of(logs(), 3)
    again = SoftLabels.read(held.to_bytes(BOUND), "x", BOUND)
    assert all(np.array_equal(getattr(held, key), getattr(again, key)) for key in ("classes", "logs", "others"))


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("data", "e", "made for other images than this training's"),
        ("teacher", "u", "made for other teacher's weights than this training's"),
        ("temperature", 1.0, "made for other temperature"),
        ("top_k", 5, "made for other task.top_k"),
    ],
)
def test_of_something_else(key, value, told):
    held = SoftLabels.of(logs(), 3).to_bytes(BOUND)
    with pytest.raises(UsageError, match=f"^task.cache: x.soft was {told}") as caught:
        SoftLabels.read(held, "x.soft", BOUND | {key: value})
    assert "\n" not in str(caught.value)


@given(st.data())
@settings(max_examples=150)
def test_no_damage_passes(data):
    held = bytearray(SoftLabels.of(logs(5), 3).to_bytes(BOUND))
    if data.draw(st.booleans()):
        held = held[: data.draw(st.integers(0, len(held) - 1))]
    else:
        at = data.draw(st.integers(0, len(held) - 1))
        held[at] ^= data.draw(st.integers(1, 255))
    try:
        read = SoftLabels.read(bytes(held), "x.soft", BOUND)
    except ShoalError as error:  # UsageError where the damage hit what it is bound to
        assert str(error).startswith("task.cache: x.soft") and "\n" not in str(error)
    else:  # a space of the header for another, say
        assert read.to_bytes(BOUND) == SoftLabels.of(logs(5), 3).to_bytes(BOUND)


# Which images they are of


def test_every_pixel_label_and_place_is_in_the_fingerprint():
    def of(change=lambda held: None) -> str:
        held = Digits(limit=50).open("train")
        held.images = held.images.copy()
        change(held)
        return fingerprint(held)

    def pixel(held):
        held.images[49, 0, 7, 7] ^= 1

    def label(held):
        held.labels[3] = -1

    def swap(held):
        held.images[[0, 1]], held.labels[[0, 1]] = held.images[[1, 0]], held.labels[[1, 0]]

    assert of() == of()
    assert len({of(), of(pixel), of(label), of(swap), fingerprint(Digits(limit=49).open("train"))}) == 5


def test_files_are_known_wherever_they_lie():
    def of(images: list[bytes], where: str) -> str:
        held = Streamed(
            images.__getitem__, lambda index: f"{where}/{index}", np.zeros(len(images)), ("a",), mean=(0,), std=(1,)
        )
        return fingerprint(held)

    images = [jpeg(number) for number in range(3)]
    assert of(images, "here") == of(images, "there") != of([*images[:2], jpeg(9)], "here")
