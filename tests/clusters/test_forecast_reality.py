"""A forecast against a training over a throttled link; `benchmarks/bench_forecast.py` does it at length."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Hosts
from throttled import probe_link, trained

from shoal.forecast import probe
from shoal.forecast.calibration import Network
from shoal.forecast.sizes import forecast
from shoal.forecast.ways import Way
from shoal.recipe.load import load

MODEL = ["cifar10-resnet8", "data=synthetic", "data.images=256", "model=lcnet_050", "batch=8", "shards=2"]


@pytest.mark.slow
def test_servers_behind_a_slow_link(hosts: Hosts, tmp_path: Path) -> None:
    """2.5 MB there and back over 50 Mbit/s take 0.8 s, whatever else the machine does; computing hardly counts."""
    words = [*MODEL, "strategy=ps", "strategy.threads=1"]
    recipe = load(words[0], words[1:]).recipe
    for name in hosts.names:
        hosts.throttle(name, "50mbit", burst="64k")
    try:
        for trial in range(3):  # a busy host's timers make the link slower, and not always alike
            link = probe_link(hosts)
            speed = trained(hosts, tmp_path / str(trial), words, 10, 2)
            rates = [8 / one.byte_s for one in (link, probe_link(hosts))]
            assert max(rates) < 100e6, "not throttled"
            if min(rates) > 40e6 and max(rates) < 55e6:
                break
        else:
            told = f"{min(rates) / 1e6:.0f} to {max(rates) / 1e6:.0f}"
            pytest.skip(f"this machine holds no link at 50 Mbit/s: {told} in the last of three trials")
    finally:
        for name in hosts.names:
            hosts.throttle(name, None)
    found = probe.measure(recipe, [4], together=2, servers=True, compute_s=1.0, limit_s=120)
    size = forecast(recipe, Way.of(recipe.strategy), 2, found, Network(byte_s=link.byte_s, latency_s=link.latency_s))
    assert size.binds == "exchange"
    assert size.images_per_s == pytest.approx(speed, rel=0.30)
