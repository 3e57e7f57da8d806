"""Parameter servers: what goes through the busiest port, in closed form; and asynchronous workers event by event."""

from __future__ import annotations

import pytest

from shoal.forecast.asynchronous import play
from shoal.forecast.calibration import Calibration, Network
from shoal.forecast.servers import Ports, sync_s


def calibration(**known: object) -> Calibration:
    held: dict = {"source": "", "images_per_epoch": 1, "parameters": 1, "gradient_bytes": 1_000_000, "image_s": 0.01}
    return Calibration(**{**held, **known})


FAST = Network(byte_s=0.0)


def test_ports_by_hand() -> None:
    assert Ports.of(2, Network(byte_s=1.0, servers=1)) == Ports(wire=1.0, served=1.0, shared=1.0)
    assert Ports.of(4, Network(byte_s=1.0, servers=4)) == Ports(wire=0.75, served=0.75, shared=0.25)
    # Three of four hosts are elsewhere; each sends its whole gradient to the one server.
    assert Ports.of(4, Network(byte_s=1.0, servers=1)).wire == 3.0
    # All on one host: nothing leaves it.
    assert Ports.of(8, Network(byte_s=1.0, servers=2, per_host=8)) == Ports(wire=0.0, served=0.0, shared=4.0)
    # Eight workers send half of what they have to the other host, which takes as much in.
    assert Ports.of(16, Network(byte_s=1.0, servers=2, per_host=8)).wire == 4.0


def test_a_synchronous_round_by_hand() -> None:
    known = calibration(call_s=1e-4)
    network = Network(byte_s=1e-8, latency_s=1e-3)
    assert sync_s(2, known, network) == pytest.approx(3 * (1e-4 + 2e-3) + 2 * 1e6 * 1e-8)


def test_more_servers_help_until_there_is_one_on_every_host() -> None:
    times = [sync_s(16, calibration(), Network(byte_s=1e-8, servers=servers)) for servers in (1, 2, 4, 8, 16)]
    assert times == sorted(times, reverse=True)
    assert times[0] / times[-1] == pytest.approx(16, rel=0.01)


def test_one_asynchronous_worker_is_the_sum_of_its_parts() -> None:
    known = calibration(call_s=1e-3, share_byte_s=1e-9, update_s=2e-3)
    played = play(10, 1, known, FAST)
    assert played.cycle_s == pytest.approx(0.1 + 2e-3 + 3e-3 + 2e-3, rel=1e-6)
    assert played.staleness == 0


def test_workers_that_meet_nowhere_add_up() -> None:
    one = play(10, 1, calibration(), FAST).shards_per_s
    played = play(10, 8, calibration(), FAST)
    assert played.shards_per_s == pytest.approx(8 * one, rel=0.03)
    assert played.staleness == pytest.approx(7, abs=0.3)


def test_a_slow_worker_costs_only_its_own_part() -> None:
    one = play(10, 1, calibration(), FAST).shards_per_s
    slowed = play(10, 4, calibration(), Network(byte_s=0.0, slow=4.0), cycles=80).shards_per_s
    assert slowed == pytest.approx(3.25 * one, rel=0.03)


def test_a_full_port_bounds_the_rate_whatever_the_workers() -> None:
    network = Network(byte_s=1e-7)  # a gradient takes 0.1 s through the server's port
    rates = [play(1, n, calibration(), network).shards_per_s for n in (16, 64)]
    for n, rate in zip((16, 64), rates, strict=True):
        assert rate <= 10 * n / (n - 1) * 1.1  # the server's own host needs no port
    assert rates[1] == pytest.approx(rates[0], rel=0.2)


def test_the_same_seed_plays_the_same() -> None:
    known = calibration(jitter=0.2)
    assert play(10, 4, known, FAST) == play(10, 4, known, FAST) != play(10, 4, known, FAST, seed=1)
