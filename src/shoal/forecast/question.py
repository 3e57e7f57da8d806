"""Question: a recipe, ways to agree, numbers of workers and a network; answered by a probe, a rate or a study."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.base.duration import Span
from shoal.base.errors import UsageError
from shoal.base.host import cores, gpus
from shoal.forecast import probe, study, told
from shoal.forecast.calibration import Calibration, Network
from shoal.forecast.sizes import NORMAL_80, Size, cut_for, forecast
from shoal.forecast.step import Step
from shoal.forecast.ways import Way
from shoal.recipe.load import load, strategies_in
from shoal.recipe.recipe import Recipe

if TYPE_CHECKING:
    from shoal.forecast.law import Law

SOURCE_RATE = "--rate"


@dataclass(frozen=True)
class Answer:
    """Forecasts with what they rest on."""

    sizes: list[Size]
    calibration: Calibration
    network: Network
    notes: tuple[str, ...] = ()
    interval: str = told.OF_MODEL

    def text(self) -> str:
        return told.text(self.sizes, self.calibration, self.network, (f"{self.interval}.", *self.notes))

    def plain(self) -> dict[str, Any]:
        return told.plain(self.sizes, self.calibration, self.network, (self.interval, *self.notes))


@dataclass(frozen=True)
class Question:
    """Checked wholly before anything is measured."""

    name: str
    overrides: tuple[str, ...]
    recipes: tuple[tuple[Recipe, Way], ...]
    """A recipe for each way, for strategies bring options of their own."""
    workers: tuple[int, ...]
    network: Network
    weak: bool
    is_linked: bool
    """Whether the network was said; else it is a study's."""

    @staticmethod
    def of(
        reference: str, overrides: Sequence[str], workers: tuple[int, ...], strategies: str | None, algorithm: Any, *,
        weak: bool, servers: int | None, per_host: int, slow: float, byte_s: float | None, latency_s: float,
    ) -> Question:  # fmt: skip
        """UsageError for whatever cannot be reckoned."""
        first = load(reference, overrides)
        recipes: list[tuple[Recipe, Way]] = []
        for text in strategies_in(strategies) if strategies else [""]:
            recipe = load(reference, [*overrides, f"strategy={text}"]).recipe if text else first.recipe
            way = Way.of(recipe.strategy, algorithm)
            if any(way == other for _, other in recipes):
                raise UsageError(f"--strategies {strategies}: {way.text} is there twice")
            recipes.append((recipe, way))
        if servers is not None and not any(way.name == "ps" for _, way in recipes):
            raise UsageError(f"--servers {servers}: strategy {recipes[0][1].name} has no servers; add --strategies ps")
        network = Network(byte_s=byte_s or 0.0, latency_s=latency_s, per_host=per_host, servers=servers or 1, slow=slow)
        question = Question(first.name, tuple(overrides), tuple(recipes), workers, network, weak, byte_s is not None)
        question._shards()
        return question

    def _shards(self) -> list[int]:
        """Images of the shards that will be computed; UsageError for numbers of workers that cannot be."""
        found = []
        for recipe, way in self.recipes:
            for n in (1, *self.workers) if way.name != "pipeline" else self.workers:
                batch, shards = cut_for(recipe, way, n, weak=self.weak)
                found.append(max(1, round(batch / shards)))
        return found

    def by_probe(self) -> Answer:
        """Measures on this machine, for a minute at most."""
        recipe, shards = self.recipes[0][0], self._shards()
        served = any(way.name == "ps" for _, way in self.recipes)
        load, here = os.getloadavg()[0], cores()
        together = min(self.network.per_host, max(self.workers))
        if together > here and not gpus():
            raise UsageError(
                f"--per-host {self.network.per_host}: {together} workers cannot be probed on {here} cores; say what "
                "one of them computes with --rate IMAGES/S"
            )
        found = probe.measure(recipe, shards, together=together, servers=served)
        busy = f"Others were at work here before the probe (load {load:.1f} on {here} cores): probe again when quiet."
        return self._answer(found, (busy,) if load > here / 2 else ())

    def by_rate(self, images_per_s: float) -> Answer:
        """Takes for granted what one worker computes; software costs nothing."""
        size = probe.size(self.recipes[0][0])
        source = f"{SOURCE_RATE} {images_per_s:g} images/s of one worker"
        notes = ["With --rate nothing was timed: input, validation, jitter and software of the exchange are left out."]
        if not size.images_per_epoch:
            notes.append("The recipe's images are not here: no hours.")
        known = {"source": source, "image_s": 1 / images_per_s, "device": "unknown"}
        return self._answer(msgspec.structs.replace(size, **known), tuple(notes))

    def by_study(self, folder: Path) -> Answer:
        """By measured runs: with a link, what one worker computes; without, the study's own law carried on."""
        from shoal.forecast import law  # numpy comes with it

        sizes: list[Size] = []
        calibration: Calibration | None = None
        notes: list[str] = []
        for recipe, way in self.recipes:
            servers = self.network.servers if way.name == "ps" else 0
            found = study.read(folder, self.name, way.strategy, servers, weak=self.weak)
            rates, rough = found.rates, found.spread
            first, rate = rates[0]
            calibration = Calibration(
                source=f"{len(found.runs)} runs of a study", images_per_epoch=found.images_per_epoch,
                parameters=found.parameters, gradient_bytes=4 * found.parameters, image_s=first / rate, spread=rough,
                device="unknown",
            )  # fmt: skip
            notes += found.differs(self.overrides)
            if self.is_linked:
                if first != 1:
                    raise UsageError(
                        f"--from {folder}: with --link a run of one worker is needed, to know what it computes"
                    )
                if not found.parameters:
                    raise UsageError(
                        f"--from {folder}: its run folders are gone, and with them the model's size; leave out --link"
                    )
                sizes += [forecast(recipe, way, n, calibration, self.network, weak=self.weak) for n in self.workers]
                continue
            if len(rates) < 2:
                raise UsageError(
                    f"--from {folder}: runs with {first} workers only; a law needs two sizes or more, or say --link"
                )
            carried = law.fit(rates, self.network.per_host, weak=self.weak)
            sizes += [self._carried(recipe, way, n, carried, rough, found.images_per_epoch) for n in self.workers]
            notes.append(
                f"{way.text}: the law of {len(rates)} sizes up to {carried.largest} workers, off by at most "
                f"{carried.residual:.1%} there, carried on; the network is the study's."
            )
        assert calibration is not None
        notes.append("By a study, hours leave out validation, checkpoints and the start.")
        if self.is_linked:
            notes.append("By a study, nothing is known of when gradients leave: ddp's do when all are computed.")
        interval = told.OF_MODEL if self.is_linked else told.OF_LAW
        return Answer(sizes, calibration, self.network, tuple(dict.fromkeys(notes)), interval)

    def _carried(self, recipe: Recipe, way: Way, n: int, carried: Law, rough: float, epoch: int) -> Size:
        """A size as the law has it; what it adds to one worker's time is exchange and waiting in one."""
        batch, _ = cut_for(recipe, way, n, weak=self.weak)
        rate, (low, high) = carried.rate(n), carried.interval(n)
        whole, alone = batch / rate, batch / n / carried.one
        more = math.exp(NORMAL_80 * rough)
        step = Step(
            compute=min(whole, alone), exchange=max(0.0, whole - alone), told="exchange and waiting, by the law"
        )
        hours = recipe.length.steps(Span(epoch, batch)) * whole / 3600 if epoch else None
        hosts, speed_up = self.network.hosts(n), rate / carried.one
        return Size(way.text, n, hosts, 0, batch, rate, low / more, high * more, speed_up, step, hours)

    def _answer(self, calibration: Calibration, notes: tuple[str, ...] = ()) -> Answer:
        sizes = [
            forecast(recipe, way, n, calibration, self.network, weak=self.weak)
            for recipe, way in self.recipes
            for n in self.workers
        ]
        return Answer(sizes, calibration, self.network, notes)
