"""What a sweep over learning rates suggests, and when it had better suggest nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from shoal.report.rates import Curve, Rates, diverges

RATES = tuple(10 ** (-4 + 5 * step / 99) for step in range(100))


def loss_at(rate: float, falls_at: float = 0.01, diverges_at: float = 1.0) -> float:
    """Falls from 2.3 to 0.3 around one rate, and goes up at another."""
    fallen = 1 / (1 + (falls_at / rate) ** 3)
    return 2.3 - 2 * fallen + (rate / diverges_at) ** 4


def curve(seed: int = 0, **shape: float) -> Curve:
    losses = []
    for rate in RATES:
        loss = loss_at(rate, **shape)
        if diverges(loss, losses[0] if losses else loss):
            break
        losses.append(loss)
    return Curve(seed, RATES, tuple(losses))


def test_where_the_loss_falls_fastest_is_least_and_diverges() -> None:
    found = curve()
    assert 0.01 < found.steepest < 0.03, "a little late, for it is smoothed"
    assert 0.2 < found.lowest < 1.0
    assert found.diverged is not None and 1.0 < found.diverged < 2.0
    rates = Rates((found, curve(1, falls_at=0.02), curve(2, falls_at=0.005)))
    assert rates.fault is None
    assert rates.suggested == pytest.approx(math.sqrt(found.steepest * found.lowest), rel=0.5)
    assert rates.text().splitlines()[-1] == f"suggested         optim.lr={rates.suggested:.2g}"
    assert "n = 3 seeds" in rates.text()


def test_the_smoothed_loss_of_a_constant_is_that_constant() -> None:
    assert Curve(0, RATES, (1.5,) * 100).smoothed == pytest.approx((1.5,) * 100)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (Curve(0, RATES, (2.3,)), "begin lower"),
        (curve(falls_at=5.0, diverges_at=100.0), "end higher"),
        (Curve(0, RATES, tuple(2.3 + 0.01 * (step % 2) for step in range(100))), "hardly fell"),
    ],
)
def test_nothing_is_suggested_where_nothing_was_seen(bad: Curve, told: str) -> None:
    rates = Rates((bad,))
    assert told in str(rates.fault) and "suggested         none" in rates.text()
    assert json.loads(json.dumps(rates.plain()))["suggested"] is None


def test_a_loss_that_was_never_finite_tells_nothing_of_rates() -> None:
    never = Curve(0, RATES, ())
    (line,) = Rates((never,)).text().splitlines()
    assert line.startswith("suggested         none: the loss is not finite before the first step")
    rates = Rates((never, curve(1)))
    assert "diverges at" in rates.text() and "n = 1 seeds" in rates.text() and rates.fault is not None
    first: Any = rates.plain()["curves"]
    assert first[0]["diverged"] is first[0]["lowest"] is None


@pytest.mark.parametrize(("loss", "bad"), [(4.5, False), (4.7, True), (math.nan, True), (math.inf, True)])
def test_twice_the_first_loss_is_divergence(loss: float, bad: bool) -> None:
    assert diverges(loss, 2.3) == bad


def test_the_picture(tmp_path: Path) -> None:
    Rates((curve(), curve(1, falls_at=0.02))).picture(tmp_path / "lr.png", "digits")
    assert (tmp_path / "lr.png").read_bytes().startswith(b"\x89PNG")
