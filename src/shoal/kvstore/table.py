"""Table: what one server holds of one flat tensor: values, an optimizer, and what each worker has pushed so far."""

from __future__ import annotations

import ctypes
import itertools
import math
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
import torch

from shoal.base.tree import TreeSum, cover
from shoal.kvstore.compress import Codec, codec
from shoal.kvstore.layout import Layout, Terms
from shoal.kvstore.shm import Shared
from shoal.kvstore.talk import APPLIED, Apply, Commit
from shoal.kvstore.updater import Updater
from shoal.kvstore.wire import WireError

T = TypeVar("T")
Life = tuple[int, str]
"""A worker's rank and session."""
_BLOCK = 1 << 17
"""Numbers that fit into a core's cache."""


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all workers say alike when they make a table known."""

    layout: Layout
    low: int
    high: int
    optimizer: dict[str, Any] | None
    terms: Terms

    @property
    def nbytes(self) -> int:
        return (self.high - self.low) * self.layout.kind.itemsize


class Stage:
    """What one worker has pushed since its last commit."""

    def __init__(self, size: int, kind: torch.dtype) -> None:
        self._size, self._kind = size, kind
        self._flat: torch.Tensor | None = None
        self.pushed: list[tuple[int, int]] = []
        self.nodes: dict[tuple[int, int], torch.Tensor] = {}
        self._spare: list[torch.Tensor] = []
        self._packed: torch.Tensor | None = None
        self.shared: Shared | None = None

    @property
    def flat(self) -> torch.Tensor:
        if self._flat is None:
            self._flat = torch.empty(self._size, dtype=self._kind)
        return self._flat

    def share(self, shared: Shared, low: int) -> None:
        """The worker's own memory from now on."""
        self.shared = shared
        self._flat = shared.tensor(self._kind)[low : low + self._size]

    def node(self, node: tuple[int, int]) -> torch.Tensor:
        if node not in self.nodes:
            self.nodes[node] = self._spare.pop() if self._spare else torch.zeros(self._size, dtype=self._kind)
        return self.nodes[node]

    def packed(self, nbytes: int) -> torch.Tensor:
        """uint8, for what came compressed."""
        if self._packed is None or len(self._packed) < nbytes:
            self._packed = torch.empty(nbytes, dtype=torch.uint8)
        return self._packed[:nbytes]

    def clear(self) -> None:
        self.pushed = []
        self._spare += self.nodes.values()
        self.nodes = {}

    def gaps(self) -> list[tuple[int, int]]:
        """[low, high) that were not pushed."""
        found, at = [], 0
        for low, high in sorted(self.pushed):
            if at < low:
                found.append((at, low))
            at = max(at, high)
        return [*found, (at, self._size)] if at < self._size else found


class Table:
    """Values [low, high) of a flat tensor. `lock` is held while they change, or are read in async mode."""

    def __init__(self, plan: Plan, values: torch.Tensor, shared: Shared | None) -> None:
        self.plan, self.values, self.shared = plan, values, shared
        self.lock = threading.Lock()
        self.version = 0
        self.applied: dict[int, tuple[str, int]] = {}
        """Rank -> its session, and the step of its last push that counts."""
        self.codec: Codec = codec(plan.terms.compression)
        self.rescale = 1.0
        self.prepared: dict[int, tuple[torch.Tensor, Commit, int]] = {}
        """async: rank -> what it committed and did not yet apply."""
        self._prepared: tuple[int, torch.Tensor] | None = None
        """sync: step and sum, likewise."""
        self._squared: float | None = None
        """The squared norm, where the last addition gave it."""
        self._stages: dict[int, Stage] = {}
        self._updater: Updater | None = None
        self._total: torch.Tensor | None = None
        self.set_optimizer(plan.optimizer)
        layout = plan.layout
        self.tensors = [
            number
            for number, start in enumerate(layout.starts)
            if layout.whole and plan.low <= start < plan.high and layout.sizes[number]
        ]
        """Those that lie here, where tensors lie whole."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def asynchronous(self) -> bool:
        return self.plan.terms.mode == "async"

    @property
    def has_optimizer(self) -> bool:
        return self._updater is not None

    def set_optimizer(self, described: dict[str, Any] | None) -> None:
        """None: a push replaces the values."""
        if described is not None:
            empty = torch.zeros_like(self.values) if len(self.values) else self.values
            self._updater = Updater(described, self.plan.layout, self.plan.low, self.values, empty)
            self._total = None
        else:
            self._updater = None

    def set_rate(self, lr: float) -> None:
        if self._updater is not None and self._updater.optimizer is not None:
            for group in self._updater.optimizer.param_groups:
                group["lr"] = lr

    def stage(self, rank: int) -> Stage:
        if rank not in self._stages:
            self._stages[rank] = Stage(len(self.values), self.values.dtype)
        return self._stages[rank]

    def forget(self, rank: int) -> None:
        """What a worker pushed and did not commit; its memory too."""
        self._stages.pop(rank, None)
        self.prepared.pop(rank, None)

    def checked(self, start: int, count: int) -> slice:
        if start + count > len(self.values):
            raise WireError(f"values {start} to {start + count} of {len(self.values)}")
        return slice(start, start + count)

    def check_node(self, node: tuple[int, int]) -> None:
        shards = self.plan.terms.shards
        if shards is None or not 0 <= node[0] < node[1] <= shards or cover(shards, *node) != [node]:
            raise WireError(f"{node} is no node of the tree over {shards} shards")

    # A synchronous round ------------------------------------------------------------------------------------------

    def total(self, ranks: list[int]) -> torch.Tensor:
        """The sum of what these workers pushed, in memory of one of them, in the order of ranks or of the tree."""
        stages = [self.stage(rank) for rank in ranks]
        if self.plan.terms.shards is not None:
            return self._tree(stages)
        pushed = [stage for stage in stages if stage.pushed]
        if not pushed:
            stages[0].flat.zero_()
            return stages[0].flat
        # Into the first that is complete, so that the others' holes need not be filled.
        first = next((stage for stage in pushed if not stage.gaps()), pushed[0])
        for low, high in first.gaps():
            first.flat[low:high].zero_()
        others = [stage for stage in pushed if stage is not first]
        for stage in others[:-1]:
            for low, high in _merged(stage.pushed):
                first.flat[low:high].add_(stage.flat[low:high])
        self._squared = None
        if others and not others[-1].gaps() and not self.plan.layout.whole:
            self._squared = _squared(first.flat, others[-1].flat)
        elif others:
            for low, high in _merged(others[-1].pushed):
                first.flat[low:high].add_(others[-1].flat[low:high])
        return first.flat

    def _tree(self, stages: list[Stage]) -> torch.Tensor:
        shards = self.plan.terms.shards
        assert shards is not None
        tree: TreeSum[torch.Tensor] = TreeSum(shards, lambda left, right: left.add_(right))
        nodes = {node: value for stage in stages for node, value in stage.nodes.items()}
        at = 0
        for node in sorted(nodes):
            if node[0] < at:
                raise WireError(f"the node {node} was pushed twice")
            for empty in cover(shards, at, node[0]):
                tree.put(empty, None)
            tree.put(node, nodes[node])
            at = node[1]
        for empty in cover(shards, at, shards):
            tree.put(empty, None)
        summed = tree.take()
        return torch.zeros_like(self.values) if summed is None else summed

    def squares(self, total: torch.Tensor) -> list[float]:
        """The squared norm, tensor by tensor in float64 where they lie whole (so that it adds up to the same bits
        however many servers there are)."""
        if not self.plan.layout.whole:
            known, self._squared = self._squared, None
            return [_squared(total) if known is None else known]
        parts = []
        for number in self.tensors:
            start = self.plan.layout.starts[number] - self.plan.low
            parts.append(total[start : start + self.plan.layout.sizes[number]].double().square().sum())
        return torch.stack(parts).tolist() if parts else []

    @property
    def num_squares(self) -> int:
        return len(self.tensors) if self.plan.layout.whole else 1

    def apply(self, total: torch.Tensor, lr: float | None, scale: float) -> None:
        """One step with the summed gradient, or the sum itself. total is used up."""
        with self.lock:
            self._apply(total, lr, scale)

    def _apply(self, total: torch.Tensor, lr: float | None, scale: float) -> None:
        if self.rescale != 1.0:
            total.mul_(self.rescale)
        if scale != 1.0:
            total.mul_(scale)
        if self._updater is None:
            self.values.copy_(total)
        else:
            if self._total is not total:
                self._updater.use(total)
                self._total = total
            self._updater.step(lr)
        self.version += 1

    def prepare(self, step: int, total: torch.Tensor) -> None:
        """sync, with several servers: the sum waits for what they all say together."""
        with self.lock:
            self._prepared = (step, total)

    def apply_prepared(self, step: int, apply: Apply) -> None:
        """Every worker says the same; the first one counts."""
        with self.lock:
            if self._prepared is None or self._prepared[0] != step:
                return
            total, self._prepared = self._prepared[1], None
            if apply.status == APPLIED:
                self._apply(total, apply.lr, apply.scale)

    def apply_alone(
        self,
        life: Life,
        step: int,
        total: torch.Tensor,
        commit: Commit,
        scale: float,
        counts: Callable[[], bool] = lambda: True,
    ) -> int | None:
        """async: one worker's push. Returns its staleness; None where it does not count, as `counts` says in the same
        moment."""
        with self.lock:
            if not counts():
                return None
            staleness = max(0, self.version - commit.pulled)
            lr = commit.lr
            if lr is not None and (pushes := self.plan.terms.damped_beyond):
                lr /= max(1, (staleness + 1) // pushes)
            self._apply(total, lr, scale)
            self.applied[life[0]] = (life[1], step)
            return staleness

    def knows(self, life: Life, step: int) -> bool:
        """Whether the worker's push of that step was applied; numbers begin again with each of its lives."""
        session, last = self.applied.get(life[0], ("", -1))
        return session == life[1] and step <= last

    def copied(self, also: Callable[[], T]) -> tuple[torch.Tensor, dict[str, torch.Tensor], int, dict[int, Any], T]:
        """Values, the optimizer's state, version, applied steps, and what `also` gives, of one moment."""
        with self.lock:
            state = self._updater.state() if self._updater is not None else {}
            state = {name: value.clone() for name, value in state.items()}
            return self.values.clone(), state, self.version, dict(self.applied), also()

    def drop(self, ranks: list[int]) -> None:
        for rank in ranks:
            self.stage(rank).clear()

    # State ----------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, torch.Tensor]:
        """A copy."""
        with self.lock:
            found = self._updater.state() if self._updater is not None else {}
            return {name: value.clone() for name, value in found.items()}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        with self.lock:
            if self._updater is not None:
                self._updater.load(state)


def _squared(total: torch.Tensor, more: torch.Tensor | None = None) -> float:
    """The squared norm of `total`, after `more` was added to it if there is any: one walk through the cache."""
    found = 0.0
    others = itertools.repeat(None) if more is None else more.split(_BLOCK)
    for block, other in zip(total.split(_BLOCK), others, strict=False):
        if other is not None:
            block.add_(other)
        found += torch.dot(block, block).item()
    return found


def added(squares: Iterable[float]) -> float:
    """One after another, so that a cut over several servers adds up to the same; `sum` rounds otherwise."""
    total = 0.0
    for square in squares:
        total += square
    return total


def clip(squares: float, clip_norm: float | None, kind: torch.dtype) -> tuple[float, float]:
    """(norm, what to multiply the gradient with), in the gradient's own precision."""
    root = math.sqrt(squares)
    if clip_norm is None:
        return ctypes.c_float(root).value if kind == torch.float32 else root, 1.0
    norm = torch.tensor(root, dtype=torch.float64).to(kind)
    return norm.item(), (clip_norm / (norm + 1e-6)).clamp(max=1.0).item()


def _merged(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for low, high in sorted(pieces):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found
