"""How fast a recipe's images come, stage by stage, and how fast its model takes them; nothing is trained or kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, cycle
from typing import Any

import msgspec
import numpy as np
import torch

from shoal.base.host import cores
from shoal.data.batches import Batches
from shoal.data.decode import Pictures
from shoal.data.order import order
from shoal.recipe.recipe import Recipe
from shoal.report.intake import BATCHES, Intake
from shoal.step.gang import Alone
from shoal.step.inputs import Inputs
from shoal.strategies.single import Single
from shoal.train.machine import Machine
from shoal.train.setup import Setup, open_data

_SOME = 16
"""Images that are timed in one go, where they come one by one."""


def measure(recipe: Recipe, threads: Sequence[int], turns: int, turn_s: float) -> Intake:
    """Each stage with so many threads, and the model, by turns of turn_s seconds each. One worker."""
    strategy: Any = recipe.strategy
    single = Single(threads=strategy.threads)
    machine = Machine.choose(single, None)
    machine.use(deterministic=False)
    recipe = msgspec.structs.replace(recipe, strategy=single, ema=None)
    setup = Setup.of(recipe, Alone(machine.device), open_data(recipe))
    source: Any = recipe.data
    own = max(1, source.threads)
    one_thread = hasattr(setup.data.train, "pixels") and not source.augment.size
    tried = [own] if one_thread else sorted({*threads, own})
    ways: dict[tuple[str, int], Iterator[int]] = {}
    for number in tried:
        ways |= {(stage, number): way for stage, way in _stages(setup, number).items()}
    rates: dict[tuple[str, int], list[float]] = {key: [] for key in ways}
    model, taking = [], _taken(setup)
    try:
        for turn in range(turns + 1):
            for key, way in ways.items():
                rates[key].append(_rate(way, turn_s if turn else turn_s / 4, setup))
            model.append(_rate(taking, turn_s if turn else turn_s / 4, setup))
    finally:
        for way in (*ways.values(), taking):
            way.close()  # type: ignore[attr-defined]
        setup.rig.close()
    # The first turn was to warm up.
    return Intake(
        {key: tuple(found[1:]) for key, found in rates.items()},
        tuple(model[1:]),
        threads=own,
        model_threads=machine.threads if machine.device.type == "cpu" else 1,
        cores=cores(),
    )


def _rate(way: Iterator[int], seconds: float, setup: Setup) -> float:
    """Images/s of what `way` goes on with."""
    began, images = time.perf_counter(), 0
    while time.perf_counter() - began < seconds or not images:
        images += next(way)
    if setup.gang.device.type == "cuda":
        torch.cuda.synchronize(setup.gang.device)
    return images / (time.perf_counter() - began)


def _stages(setup: Setup, threads: int) -> dict[str, Iterator[int]]:
    """The way up to each stage, without end: how many images each go of it brought."""
    data, source = setup.data.train, setup.recipe.data
    augment: Any = source.augment  # type: ignore[attr-defined]
    pixels = getattr(data, "pixels", None)
    seed, chosen = setup.recipe.seed, cycle(order(len(data.labels), setup.recipe.seed, 0, source.shuffle))  # type: ignore[attr-defined]
    layout = torch.channels_last if setup.recipe.model.channels_last else torch.contiguous_format
    inputs = Inputs(data.mean, data.std, setup.recipe.precision.dtype(), setup.gang.device, layout)  # type: ignore[attr-defined]

    def one_by_one(work: Callable[[int], object]) -> Iterator[int]:
        with ThreadPoolExecutor(threads, "intake") as pool:
            while True:
                some = [int(next(chosen)) for _ in range(_SOME * threads)]
                for _ in pool.map(work, some):
                    pass
                yield len(some)

    def in_memory() -> Iterator[int]:
        while True:
            some = np.array([next(chosen) for _ in range(setup.cut.span.batch)])
            pixels(some)  # type: ignore[misc]
            yield len(some)

    def cropped() -> Iterator[int]:
        pictures = Pictures(data, augment, threads)
        for epoch in count():
            some = np.array([next(chosen) for _ in range(setup.cut.span.batch)])
            pictures.train(some, seed=seed, epoch=epoch)
            yield len(some)

    def in_batches(use: Callable[[Any], object]) -> Iterator[int]:
        batches = Batches(data, augment, setup.cut, decoders=threads, upload=setup.upload)
        for first in count(0, setup.cut.span.steps_per_epoch):
            steps = batches.steps(first, first + setup.cut.span.steps_per_epoch)
            try:
                for made in steps:
                    use(made)
                    yield sum(len(batch.labels) for batch in made)
            finally:
                steps.close()

    def to_device(made: Any) -> None:
        for batch in made:
            inputs(batch.to(setup.gang.device).images)

    first = {"in memory": in_memory()} if pixels else {"read": one_by_one(data.read), "decoded": one_by_one(data.image)}  # type: ignore[union-attr]
    return {**first, "cropped": cropped(), BATCHES: in_batches(len), "on the device": in_batches(to_device)}


def _taken(setup: Setup) -> Iterator[int]:
    """The model's steps on one global batch, held ready."""
    source: Any = setup.recipe.data
    held = Batches(setup.data.train, source.augment, setup.cut, decoders=cores(), upload=setup.upload).prepare(0)
    images = setup.cut.count(0)
    while True:
        for batch in held:
            setup.rig.forward_backward(batch, last=batch is held[-1])
        setup.rig.apply(0.0, images)
        yield images
