"""Sweep: a few steps of a recipe at rates that rise from step to step (Smith 2017's range test)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from shoal.base.errors import UsageError
from shoal.recipe.recipe import Recipe
from shoal.report.rates import Curve, Rates, diverges
from shoal.step.gang import Alone
from shoal.step.nonfinite import NonFiniteError
from shoal.strategies.single import Single
from shoal.train.machine import Machine
from shoal.train.setup import Data, Setup, open_data


def sweep(
    recipe: Recipe, low: float, high: float, steps: int, seeds: int, tell: Callable[[Curve], None] = lambda curve: None
) -> Rates:
    """Rates of `optim.lr` from low to high, the same factor apart; each seed begins a model of its own. One worker."""
    strategy: Any = recipe.strategy
    single = Single(threads=strategy.threads)
    machine = Machine.choose(single, None)
    machine.use(deterministic=False)
    recipe = msgspec.structs.replace(recipe, strategy=single, ema=None)
    rates = tuple(low * (high / low) ** (step / (steps - 1)) for step in range(steps))
    data, curves = open_data(recipe), []
    for seed in range(recipe.seed, recipe.seed + seeds):
        curves.append(_curve(msgspec.structs.replace(recipe, seed=seed), data, machine, rates))
        tell(curves[-1])
    return Rates(tuple(curves))


def _curve(recipe: Recipe, data: Data, machine: Machine, rates: tuple[float, ...]) -> Curve:
    setup = Setup.of(recipe, Alone(machine.device), data)
    optim: Any = recipe.optim
    if not optim.lr:
        raise UsageError("optim.lr: 0 cannot be scaled; state any other rate")
    factor = optim.peak(setup.cut.span.batch) / optim.lr
    losses: list[float] = []
    steps = setup.batches().steps(0, len(rates))
    try:
        for step, (rate, held) in enumerate(zip(rates, steps, strict=False)):
            outputs = [setup.rig.forward_backward(batch, last=batch is held[-1]) for batch in held]
            images = setup.cut.count(step)
            loss = float(sum(output.loss for output in outputs)) / images
            if diverges(loss, losses[0] if losses else loss):
                break
            losses.append(loss)
            try:
                setup.rig.apply(rate * factor, images)
                setup.rig.settle()
            except NonFiniteError:
                break
    finally:
        steps.close()
        setup.rig.close()
    return Curve(recipe.seed, rates, tuple(losses))
