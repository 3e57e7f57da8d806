"""Forecast against reality: two hosts in namespaces of this machine, their links throttled; images/s foretold and
measured, strategy by link by model. Root, sshd and iproute2 are needed.

Several rounds for each link, for a machine changes from one to the next: link and machine are probed, each strategy
trains, the machine is probed again, and the mean of both is what the forecast starts from. A setting's error is the
median of its rounds'.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from pairs import code, finish, machine, recall, remember, verdict

from shoal.base.host import cores
from shoal.forecast import probe
from shoal.forecast.calibration import Calibration, Network
from shoal.forecast.sizes import forecast
from shoal.forecast.ways import Way
from shoal.recipe.load import load

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "clusters"))

from cluster import Hosts, cluster, why_not
from throttled import Link, probe_link, trained

LINKS = ("100mbit", "300mbit", "1gbit")
STRATEGIES = ("ddp", "ps", "ps:mode=async")
MODELS = {
    "cifar10-resnet8": ["cifar10-resnet8", "data=synthetic", "data.size=28"],
    "lcnet_050": ["cifar10-resnet8", "data=synthetic", "model=lcnet_050", "batch=32"],
}
"""0.3 MB of gradients that take long to compute, 2.5 MB that do not."""
COMMON = ["strategy.threads=1", "shards=2"]
SECONDS = 8.0
IDLE, DRIFT, STOLEN = 0.85, 0.15, 0.05
"""With --wait: the share of idle cores to begin at, how far the probes before and after may be apart, and how much of a
virtual machine's time its host may take meanwhile."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--links", default=",".join(LINKS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each training, at least an epoch")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds at most, for others to be quiet, each time")
    parser.add_argument("--keep", type=Path, help="a file of what was measured in quiet so far")
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    print(machine())
    reason = why_not()
    if reason:
        print(f"not measured: {reason}")
        return
    settings: list[list[Row]] = []
    with cluster(2) as hosts, tempfile.TemporaryDirectory() as folder:
        for model in options.models.split(","):
            for link in options.links.split(","):
                rounds: list[list[Row]] = []
                for number in range(options.rounds):
                    about = {"model": model, "link": link, "number": number, "seconds": options.seconds, "code": code()}
                    kept = recall(options.keep, about) if options.keep else None
                    if kept is None:
                        kept, quiet = _round(hosts, Path(folder), model, link, options.seconds, options.wait)
                        if options.keep and quiet:
                            remember(options.keep, about, kept)
                    rounds.append([Row._make(row) for row in kept])
                settings += [list(rows) for rows in zip(*rounds, strict=True)]
                print(f"{model} over {link}", flush=True)
                for rows in settings[-len(STRATEGIES) :]:
                    print(_told(rows), flush=True)
    errors = [abs(_error(rows)) for rows in settings]
    held = sum(_is_inside(rows) for rows in settings)
    load = os.getloadavg()[0]
    print(f"{len(settings)} settings of {options.rounds} rounds; {held} inside their 80 % interval; load {load:.1f}")
    verdict("median error", statistics.median(errors), "<= 0.15", statistics.median(errors) <= 0.15)
    verdict("worst error", max(errors), "<= 0.30", max(errors) <= 0.30)
    finish()


class Row(NamedTuple):
    """A strategy in one round: images/s."""

    strategy: str
    measured: float
    foretold: float
    low: float
    high: float


def _error(rows: Sequence[Row]) -> float:
    return statistics.median(row.foretold / row.measured for row in rows) - 1


def _is_inside(rows: Sequence[Row]) -> bool:
    """Whether the interval of most rounds held."""
    return statistics.median(row.low <= row.measured <= row.high for row in rows) > 0.5


def _told(rows: Sequence[Row]) -> str:
    each = ", ".join(f"{row.foretold:.0f} ({row.low:.0f} to {row.high:.0f}) / {row.measured:.0f}" for row in rows)
    outside = "" if _is_inside(rows) else " OUTSIDE"
    return f"  {rows[0].strategy:14} {_error(rows):+.1%}{outside}; foretold / measured images/s: {each}"


def _round(hosts: Hosts, folder: Path, model: str, link: str, seconds: float, wait_s: float) -> tuple[list[Row], bool]:
    """One link, one model, all strategies; whether it was quiet.

    With a time to wait, measured again when the probes before and after disagree by far, or the host was busy.
    """
    images = _shard_images(model)
    for _ in range(4):
        _wait_for_quiet(wait_s)
        began = _spent()
        before = _probe(model)
        with tempfile.TemporaryDirectory(dir=folder) as place:
            found, speeds = _over(hosts, Path(place), model, link, before, seconds)
        after = _probe(model)
        drift, stolen = abs(before.shard(images) / after.shard(images) - 1), _stolen(began)
        print(f"  (speed changed by {drift:.0%} meanwhile; the host took {stolen:.0%} of what was wanted)", flush=True)
        quiet = drift <= DRIFT and stolen <= STOLEN
        if quiet or not wait_s:
            break
    return _compare(model, found, speeds, _mean(before, after, images)), quiet


def _wait_for_quiet(wait_s: float) -> None:
    """Until nobody else computes for two seconds on end, and a virtual machine's host gives what is wanted."""
    until = time.monotonic() + wait_s
    while time.monotonic() < until and (_idle() < IDLE or _stolen_now() > STOLEN):
        time.sleep(5.0)


def _idle() -> float:
    """The share of all cores' time that nobody used, over two seconds; 1 where the system does not tell."""
    began = _spent()
    time.sleep(2.0)
    spent = _since(began)
    return spent[3] / sum(spent) if any(spent) else 1.0


def _stolen_now() -> float:
    """Over three seconds in which all cores are wanted."""
    began = _spent()
    spin = [sys.executable, "-c", "import time\nuntil = time.monotonic() + 3\nwhile time.monotonic() < until: pass"]
    for spinning in [subprocess.Popen(spin) for _ in range(cores())]:
        spinning.wait()
    return _stolen(began)


def _stolen(began: list[int]) -> float:
    """Since then: the host's part of the time that programs of this machine would have computed."""
    spent = _since(began)
    return spent[7] / max(1, sum(spent[:3]) + spent[7])


def _since(began: list[int]) -> list[int]:
    return [after - before for before, after in zip(began, _spent(), strict=True)]


def _spent() -> list[int]:
    """Time of all cores so far: user, nice, system, idle, waiting, two kinds of interrupts, stolen."""
    if not os.path.exists("/proc/stat"):
        return [0] * 8
    with open("/proc/stat") as file:
        return [int(word) for word in file.readline().split()[1:9]]


def _words(model: str, strategy: str) -> list[str]:
    return [*MODELS[model], f"strategy={strategy}", *COMMON]


def _probe(model: str) -> Calibration:
    """Two workers at once, for the two hosts share this machine's cores."""
    name, *overrides = _words(model, "ps")
    return probe.measure(
        load(name, overrides).recipe, [_shard_images(model)], together=2, threads=1, servers=True, limit_s=300
    )


def _shard_images(model: str) -> int:
    name, *overrides = _words(model, "ddp")
    return load(name, overrides).recipe.batch_for(2) // 2


def _mean(a: Calibration, b: Calibration, images: int) -> Calibration:
    """Of two measurements; half their difference is part of the spread."""
    mean = {
        field: (getattr(a, field) + getattr(b, field)) / 2
        for field in ("shard_s", "image_s", "update_s", "jitter", "uneven", "forward", "bucket_s", "hop_s",
                      "sum_byte_s", "core_hop_s", "core_byte_s", "call_s", "serve_byte_s", "share_byte_s")
    }  # fmt: skip
    drift = abs(a.shard(images) - b.shard(images)) / (a.shard(images) + b.shard(images))
    return msgspec.structs.replace(a, **mean, spread=max(a.spread, b.spread, drift))


def _over(
    hosts: Hosts, folder: Path, model: str, link: str, calibration: Calibration, seconds: float
) -> tuple[Link, dict[str, float]]:
    """The link as it was probed, and images/s by strategy."""
    for name in hosts.names:
        hosts.throttle(name, link)
    found = probe_link(hosts)
    speeds = {}
    for strategy in STRATEGIES:
        rough = _forecast(model, strategy, calibration, found)
        epoch = -(-calibration.images_per_epoch // rough.batch)
        epochs = max(1, round(seconds * rough.images_per_s / calibration.images_per_epoch))
        run = folder / f"{model}-{link}-{strategy.replace(':', '-')}"
        # Whole ones, for asynchronous workers meet at their ends; and one before to get warm.
        speeds[strategy] = trained(hosts, run, _words(model, strategy), (1 + epochs) * epoch, epoch)
    return found, speeds


def _forecast(model: str, strategy: str, calibration: Calibration, link: Link):
    name, *overrides = _words(model, strategy)
    recipe = load(name, overrides).recipe
    network = Network(byte_s=link.byte_s, latency_s=link.latency_s)
    return forecast(recipe, Way.of(recipe.strategy), 2, calibration, network)


def _compare(model: str, found: Link, speeds: dict[str, float], calibration: Calibration) -> list[Row]:
    """Prints what a round's forecast starts from, and its parts."""
    images = _shard_images(model)
    print(
        f"  {8e-6 / found.byte_s:.0f} Mbit/s and {found.latency_s * 1e6:.0f} us probed; "
        f"{calibration.gradient_bytes / 1e6:.2f} MB; a shard of {images} in {calibration.shard(images) * 1e3:.1f} ms, "
        f"jitter {calibration.jitter:.2f}, uneven {calibration.uneven:.2f}, spread {calibration.spread:.2f}, "
        f"buckets {calibration.bucket_s * 1e3:.1f} ms"
    )
    rows = []
    for strategy, speed in speeds.items():
        size = _forecast(model, strategy, calibration, found)
        parts = ", ".join(f"{name} {value * 1e3:.1f}" for name, value in size.step.parts.items() if value > 1e-5)
        print(f"    {strategy:14} {size.images_per_s:.0f} / {speed:.0f}   [ms: {parts}]", flush=True)
        rows.append(Row(strategy, speed, size.images_per_s, size.low, size.high))
    return rows


if __name__ == "__main__":
    main()
