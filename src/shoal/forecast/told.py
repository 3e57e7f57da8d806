"""How a forecast is told: a table, what binds at each size in plain words, and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.forecast.calibration import Calibration, Network
from shoal.forecast.sizes import Size
from shoal.forecast.units import shown_rate, shown_time
from shoal.report.tables import table

HEADER = ("workers", "hosts", "batch", "images/s", "80 % interval", "speed-up", "efficiency", "hours", "machine-hours",
          "binds")  # fmt: skip
OF_MODEL = (
    "80 % interval of images/s: the spread of the calibration, 5 % for the model as a whole, 30 % of the time for "
    "exchange and waiting"
)
OF_LAW = (
    "80 % interval of images/s: how far the law misses the sizes it was fitted to, 5 % and 2 % more for each doubling "
    "beyond (twice that where efficiency is below 0.8), the spread of repeats"
)
WORDS = {
    "compute": "computing binds: {share:.0%} of a step of {total}; a faster device would help most",
    "exchange": "the exchange binds: {share:.0%} of a step of {total} nothing else is done ({told})",
    "waiting": "stragglers bind: {share:.0%} of a step of {total} everybody waits for the slowest",
    "input": "images bind: {share:.0%} of a step of {total} is waiting for them; more loader threads or packing help",
    "pauses": "validation and checkpoints bind: {share:.0%} of the time; eval_every and save_every say how often",
}


def text(sizes: Sequence[Size], calibration: Calibration, network: Network, notes: Sequence[str]) -> str:
    """What a person reads."""
    lines = [f"Calibrated by {calibration.source}: {_calibration(calibration)}.", f"Network: {_network(network)}."]
    for way in dict.fromkeys(size.way for size in sizes):
        mine = [size for size in sizes if size.way == way]
        lines += ["", way, table([_row(size) for size in mine], HEADER), ""]
        lines += [f"{size.workers:,} worker{'s' if size.workers > 1 else ''}: {binds(size)}" for size in mine]
    return "\n".join([*lines, "", *notes])


def binds(size: Size) -> str:
    """One sentence."""
    name, total = size.binds, size.step.total
    share = size.step.parts[name] / total
    said = WORDS[name].format(share=share, total=shown_time(total), told=size.step.told)
    if size.step.staleness is not None:
        said += f"; weights are {size.step.staleness:.1f} pushes old when a gradient comes"
    return said + "."


def plain(sizes: Sequence[Size], calibration: Calibration, network: Network, notes: Sequence[str]) -> dict[str, Any]:
    """For --json: seconds, bytes and images throughout."""
    held = {
        key: value for key in calibration.__struct_fields__ if (value := getattr(calibration, key)) not in ([], None)
    }
    for key in ("gradients", "layers"):
        held.pop(key, None)
    return {
        "calibration": held,
        "network": {key: getattr(network, key) for key in network.__struct_fields__},
        "notes": list(notes),
        "sizes": [
            {
                "strategy": size.way,
                "workers": size.workers,
                "hosts": size.hosts,
                "servers": size.servers,
                "batch": size.batch,
                "images_per_s": size.images_per_s,
                "low": size.low,
                "high": size.high,
                "speedup": size.speedup,
                "efficiency": size.efficiency,
                "hours": size.hours,
                "machine_hours": size.machine_hours,
                "step_s": size.step.total,
                "parts_s": size.step.parts,
                "staleness": size.step.staleness,
                "binds": size.binds,
                "told": binds(size),
            }
            for size in sizes
        ],
    }


def _row(size: Size) -> tuple[object, ...]:
    return (
        size.workers,
        size.hosts,
        size.batch,
        _three(size.images_per_s),
        f"{_three(size.low)} to {_three(size.high)}",
        f"{size.speedup:,.2f} x",
        f"{100 * size.efficiency:.0f} %",
        _three(size.hours),
        _three(size.machine_hours),
        size.binds,
    )


def _three(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _calibration(calibration: Calibration) -> str:
    said = [f"{calibration.parameters:,} parameters"]
    if calibration.shard_s:
        said.append(f"a shard {shown_time(calibration.shard_s)} and {shown_time(calibration.image_s)} an image")
    else:
        said.append(f"{shown_time(calibration.image_s)} an image")
    if calibration.measured_images:
        said[-1] += f" (measured up to {calibration.measured_images} images)"
    if calibration.update_s:
        said.append(f"{shown_time(calibration.update_s)} a step beside")
    if calibration.load_image_s:
        said.append(f"images at {_three(1 / calibration.load_image_s)} a second")
    if calibration.jitter:
        said.append(f"steps vary by {calibration.jitter:.0%}")
    return ", ".join(said)


def _network(network: Network) -> str:
    workers = f"{network.per_host} worker{'s' if network.per_host > 1 else ''} a host"
    if not network.byte_s:
        return f"the study's own, {workers}"
    rate = f"{shown_rate(1 / network.byte_s)} a host"
    slow = f", one worker {network.slow:g} x slower" if network.slow != 1 else ""
    return f"{rate}, {shown_time(network.latency_s)} one way, {workers}{slow}"
