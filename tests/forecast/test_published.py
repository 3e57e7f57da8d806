"""The laws against what others have printed: fitted to the small sizes, the large ones foretold."""

from __future__ import annotations

import pytest

from shoal.forecast.calibration import Calibration, Network
from shoal.forecast.law import Law, fit
from shoal.forecast.published import Row, names, table
from shoal.forecast.step import Cut
from shoal.forecast.ways import Way
from shoal.strategies.ddp import Ddp


def fitted(name: str, job: str, up_to: int) -> tuple[Law, dict[int, float]]:
    found = table(name)
    speeds = found.row(job).speeds()
    return fit([(n, rate) for n, rate in speeds.items() if n <= up_to], found.per_host), speeds


def test_every_table_names_its_source() -> None:
    assert names() == ["dlperf", "lab", "mxnet", "paddleclas"]
    for name in names():
        found = table(name)
        assert len(found.source) > 20 and found.hardware and found.rows
        assert all(row.rates or row.days for row in found.rows)


@pytest.mark.parametrize(("job", "limit"), [("ResNet-152", 0.05), ("Inception-v3", 0.05), ("AlexNet", 0.15)])
def test_mxnets_256_gpus_from_32(job: str, limit: float) -> None:
    law, speeds = fitted("mxnet", job, 32)
    for n in (64, 128, 256):
        assert law.rate(n) == pytest.approx(speeds[n], rel=limit)
        low, high = law.interval(n)
        assert low <= speeds[n] <= high
    efficient = speeds[256] / 256 / speeds[1] > 0.85
    assert efficient == (limit == 0.05)


@pytest.mark.parametrize("job", ["PyTorch fp32", "PyTorch amp", "Paddle fp32"])
def test_dlperfs_32_gpus_from_16(job: str) -> None:
    law, speeds = fitted("dlperf", job, 16)
    assert law.rate(32) == pytest.approx(speeds[32], rel=0.05)
    assert law.interval(32)[0] <= speeds[32] <= law.interval(32)[1]


def test_rows_that_no_law_of_exchange_explains_say_so() -> None:
    for job in ("Paddle amp", "Paddle amp, DALI"):
        assert "Not held to a limit" in table("dlperf").row(job).note
    law, speeds = fitted("dlperf", "Paddle amp, DALI", 16)
    assert abs(law.rate(32) / speeds[32] - 1) > 0.15


def speedup(row: Row, small: int, large: int) -> float:
    return row.days[small] / row.days[large]


def test_paddleclas_misprint_is_noted_and_the_days_are_used() -> None:
    for row in table("paddleclas").rows:
        wrong = [
            name
            for name, printed in row.printed.items()
            if abs(speedup(row, *map(int, name.split("->"))) - printed) > 0.02
        ]
        assert bool(wrong) == ("misprint" in row.note), row.job
        assert all(name in row.note for name in wrong)


@pytest.mark.parametrize("job", ["PPHGNet-base", "PPLCNetV2-base", "PPLCNet_x0_25"])
def test_paddleclas_32_gpus_from_8(job: str) -> None:
    law, speeds = fitted("paddleclas", job, 8)
    assert law.rate(32) == pytest.approx(speeds[32], rel=0.10)


@pytest.mark.parametrize(("job", "binds"), [("PPLCNet_x0_25", "input"), ("PPHGNet-base", "compute")])
def test_one_ceiling_of_input_explains_paddleclas_hosts(job: str, binds: str) -> None:
    """Models 33 x apart in work stop at the same speed of a host: what PPLCNetV2 tells of it holds for the others."""
    rows = table("paddleclas")
    ceiling = rows.row("PPLCNetV2-base").days[8] * 8
    known = Calibration(
        source="", images_per_epoch=1, parameters=1, gradient_bytes=4, image_s=rows.row(job).days[1],
        load_image_s=ceiling,
    )  # fmt: skip
    step = Way(Ddp()).step(Cut.of(8, 8, 8), known, Network(byte_s=0.0, per_host=8))
    assert step.total / 8 == pytest.approx(rows.row(job).days[8], rel=0.15)
    assert (step.input > 0) == (binds == "input")


def test_the_labs_contradictory_row_is_told_not_explained() -> None:
    row = table("lab").row("servers beside workers")
    law = fit(list(row.rates.items()), 1)
    assert abs(law.rate(2) / row.rates[2] - 1) > 0.25
    assert "unexplained" in row.note
    other = table("lab").row("servers on nodes of their own")
    assert fit(list(other.rates.items()), 1).rate(2) == pytest.approx(other.rates[2], rel=0.01)


@pytest.mark.parametrize("weak", [True, False])
def test_a_law_recovers_what_it_was_made_of(weak: bool) -> None:
    made = Law((1.0, 0.2, 0.1), per_host=4, weak=weak, largest=16, residual=0.0, one=1.0)
    found = fit([(n, made.rate(n)) for n in (1, 2, 4, 8, 16)], 4, weak=weak)
    assert found.terms == pytest.approx(made.terms, rel=1e-9)
    assert found.residual < 1e-9
