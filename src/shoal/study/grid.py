"""Grid: what a study measures: each strategy with each number of workers, so and so often, in which order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shoal.base.errors import UsageError

_STRATEGY = ("strategy", "strategy.name")


@dataclass(frozen=True)
class Cell:
    """One way of spreading the work."""

    strategy: str
    """As on command lines: `ddp`, `ps:mode=async`."""
    workers: int
    """Places that compute: worker processes, or devices of one."""
    servers: int
    processes: int
    """Worker processes."""
    overrides: tuple[str, ...] = ()
    """Beside the strategy."""
    same_model: bool = field(default=True, compare=False)
    """Whether any number of workers trains the same model."""

    @property
    def way(self) -> str:
        """The strategy, and its servers where they are several: what has one line in a picture."""
        return self.strategy + (f", {self.servers} servers" if self.servers > 1 else "")

    @property
    def name(self) -> str:
        servers = f"-s{self.servers}" if self.servers > 1 else ""
        return re.sub(r"[^\w.=-]+", "-", f"{self.strategy}-{self.workers}{servers}")

    @property
    def where(self) -> str:
        servers = f" and {counted(self.servers, 'server')}" if self.servers else ""
        return f"{self.strategy}, {counted(self.workers, 'worker')}{servers}"


def counted(count: int, what: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{count} {what}{'s' * (count != 1)}"


@dataclass(frozen=True)
class Grid:
    """The cells, and what all trainings of a study share."""

    recipe: str
    overrides: tuple[str, ...]
    cells: tuple[Cell, ...]
    repeats: int
    seed: int
    """Of the first repeat; each further one adds 1: accuracies have a spread, and cells are compared in pairs."""
    weak: bool
    """The batch grows with the workers, and each does the same steps; else all do the same work together."""
    left_out: tuple[str, ...] = ()
    """Cells that cannot be, with the reason."""
    resolved: dict[str, Any] = field(default_factory=dict)
    """The recipe as it was read, every key with its value; empty in plans of older Shoals."""

    @staticmethod
    def plan(
        recipe: str,
        overrides: Sequence[str],
        strategies: Sequence[str],
        workers: Sequence[int],
        *,
        servers: int | None = None,
        repeats: int = 3,
        weak: bool = False,
    ) -> Grid:
        """UsageError where the recipe is at fault or no cell is left. Imports no torch."""
        from shoal.recipe.load import load, plain

        _check_overrides(overrides, strategies)
        base = load(recipe, overrides).recipe
        shared = _shared(base.strategy, overrides, strategies) + (_weak(base) if weak else ())
        cells, left_out, said = [], [], {}
        for strategy in dict.fromkeys(strategies):
            found, wrong = _cells(recipe, (*overrides, *shared), strategy, sorted(set(workers)), servers)
            if wrong and not found:
                raise next(iter(wrong.values()))  # the strategy itself does not go, whatever the number
            whole = found[0].strategy
            if whole in said:
                raise UsageError(
                    f"--strategies {said[whole]} and {strategy} are both {whole} by the recipe's options; say those "
                    "that each shall have"
                )
            said[whole] = strategy
            cells += found
            left_out += [f"{strategy}, {counted(count, 'worker')}: {error}" for count, error in wrong.items()]
        if not cells:
            raise UsageError("no strategies and workers to compare")
        if servers and not any(cell.servers for cell in cells):
            raise UsageError(f"--servers {servers}: none of --strategies {','.join(strategies)} has servers; add ps")
        # A built-in recipe is named, an own one must be found from any folder.
        place = str(Path(recipe).resolve()) if Path(recipe).is_file() else recipe
        return Grid(place, (*overrides, *shared), tuple(cells), repeats, base.seed, weak, tuple(left_out), plain(base))

    def order(self) -> Iterator[tuple[int, Cell]]:
        """(repeat, cell): forth and back, so that a machine that slowly changes its speed favours no cell."""
        for repeat in range(self.repeats):
            for cell in self.cells if repeat % 2 == 0 else reversed(self.cells):
                yield repeat, cell

    def command(self, cell: Cell, repeat: int, run: Path) -> list[str]:
        """`shoal train` for one training, as words."""
        words = ["train", self.recipe, f"strategy={cell.strategy}", *self.overrides, *cell.overrides]
        words += [f"seed={self.seed + repeat}", "-n", str(cell.processes)]
        return [*words, *(["-s", str(cell.servers)] if cell.servers else []), "--run", str(run)]

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(plain: dict[str, Any]) -> Grid:
        cells = tuple(Cell(**{**cell, "overrides": tuple(cell["overrides"])}) for cell in plain["cells"])
        lists = {name: tuple(plain[name]) for name in ("overrides", "left_out")}
        return Grid(**{**plain, **lists, "cells": cells})

    def joined(self, other: Grid) -> Grid:
        """Both grids' cells, equal ones as the other tells them, and the larger number of repeats."""
        cells = tuple({cell: cell for cell in (*self.cells, *other.cells)}.values())
        return Grid(
            self.recipe,
            self.overrides,
            cells,
            max(self.repeats, other.repeats),
            self.seed,
            self.weak,
            tuple(dict.fromkeys((*self.left_out, *other.left_out))),
            self.resolved or other.resolved,
        )

    def same_work(self, other: Grid) -> bool:
        """Whether their trainings may stand in one table."""
        mine, theirs = ((g.recipe, g.overrides, g.seed, g.weak) for g in (self, other))
        return mine == theirs

    def changes(self, now: Grid, where: str) -> dict[str, tuple[Any, Any]]:
        """Key -> (here, now), of what differs in the recipe itself since this grid was planned; where: it is kept."""
        from shoal.recipe import yaml12
        from shoal.recipe.changes import differences
        from shoal.recipe.load import parse

        if not self.resolved or not now.resolved:
            return {}
        return differences(self.resolved, where, parse(yaml12.write(now.resolved), now.recipe).recipe)


def _check_overrides(overrides: Sequence[str], strategies: Sequence[str]) -> None:
    """UsageError where one would train another strategy than the one that a row is called after."""
    said = _said(strategies)
    for text in overrides:
        key, _, value = (word.strip() for word in text.partition("="))
        if key in _STRATEGY:
            raise UsageError(f"{text}: a study compares strategies; say it as --strategies {value or 'ddp'}")
        if key in said:
            raise UsageError(f"{text}: --strategies {said[key]} says it, too; leave one of them out")


def _cells(
    recipe: str, overrides: Sequence[str], strategy: str, workers: Sequence[int], servers: int | None
) -> tuple[list[Cell], dict[int, UsageError]]:
    """A strategy with each number of workers; those with which it does not go, and why."""
    cells, wrong = [], {}
    for count in workers:
        try:
            cells.append(_cell(recipe, overrides, strategy, count, servers))
        except UsageError as error:
            wrong[count] = error
    return cells, wrong


def _cell(recipe: str, overrides: Sequence[str], strategy: str, count: int, servers: int | None) -> Cell:
    from shoal.recipe.load import load

    made: Any = load(recipe, (f"strategy={strategy}", *overrides)).recipe
    more, processes = made.strategy.spread(count)
    made = load(recipe, (f"strategy={strategy}", *overrides, *more)).recipe
    roles = {role.name: role.count for role in made.strategy.roles(processes, servers)}
    num_servers = roles.get("server", 0)
    made.strategy.check(processes, num_servers, made.shards_for(processes))
    made.check_cut(processes)
    same_model = made.strategy.same_model and made.shards != "auto" and made.batch is not None
    whole = _whole(strategy, made.strategy, (*overrides, *more))
    return Cell(whole, count, num_servers, processes, more, same_model)


def _whole(strategy: str, made: Any, overrides: Sequence[str]) -> str:
    """With the options that it has from the recipe file: a row says what was trained."""
    from shoal.recipe.load import words
    from shoal.strategies import Strategy

    held = _from_file(made, overrides, [strategy])
    more = ",".join(words({key: held[key] for key in held if key not in Strategy.__struct_fields__}))
    return f"{strategy}{',' if ':' in strategy else ':'}{more}" if more else strategy


def _shared(made: Any, overrides: Sequence[str], strategies: Sequence[str]) -> tuple[str, ...]:
    """What the recipe file says to its own strategy and every other understands (threads): for a fair comparison."""
    from shoal.recipe.load import words
    from shoal.strategies import Strategy

    held = _from_file(made, overrides, strategies)
    return tuple(words({f"strategy.{key}": held[key] for key in held if key in Strategy.__struct_fields__}))


def _from_file(made: Any, overrides: Sequence[str], strategies: Sequence[str]) -> dict[str, Any]:
    """Options of a strategy that are not as by default, and that nobody said beside the recipe file."""
    from shoal.recipe.load import changed

    known = {*_said(strategies), *(text.partition("=")[0].strip() for text in overrides)}
    return {key: held for key, held in changed(made).items() if f"strategy.{key}" not in known}


def _said(strategies: Sequence[str]) -> dict[str, str]:
    """Key of the recipe -> the strategy that says it."""
    from shoal.recipe.load import short_form

    return {f"strategy.{key}": strategy for strategy in strategies for key in short_form(strategy)[1]}


def _weak(base: Any) -> tuple[str, ...]:
    """The recipe's batch is each worker's, and its steps are as many as one worker would do."""
    if base.length.unit != "st":
        raise UsageError(
            f"--weak: every worker does the same number of steps, but length is {base.length}; give it in steps, as in "
            "length=500st"
        )
    return ("batch=null", f"batch_per_worker={base.batch_for(1)}", "shards=auto")
