"""Owned: an optimizer of which each worker has some of the tensors, and their state; checkpoints do not know it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from shoal.base.errors import UsageError
from shoal.step.gang import Gang


def check_apart(optimizer: torch.optim.Optimizer, what: str) -> None:
    """UsageError where tensors cannot be stepped apart from each other; what: the option that wants it."""
    if any(group.get("max_grad_norm") for group in optimizer.param_groups):
        raise UsageError(f"{what}: max_grad_norm needs the whole gradient; use optim.clip_norm")


class Partial:
    """An optimizer that steps a part of what the model trains by another one, and looks like that one."""

    _inner: torch.optim.Optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._inner.param_groups

    @property
    def defaults(self) -> dict[str, Any]:
        return self._inner.defaults

    @property
    def state(self) -> dict[torch.Tensor, dict[str, Any]]:
        """Of this worker's part."""
        return self._inner.state  # type: ignore[return-value]


class Owned(Partial):
    """Steps this worker's own tensors. The workers of the gang own all of them together, each tensor once."""

    def __init__(self, optimizer: torch.optim.Optimizer, own: set[int], gang: Gang, what: str) -> None:
        """optimizer: of all tensors, without state. own: ids of this worker's. what: the option that wants this.
        UsageError: an optimizer whose tensors depend on each other."""
        check_apart(optimizer, what)
        self._inner, self._gang, self._own = optimizer, gang, own
        self._all = [list(group["params"]) for group in optimizer.param_groups]
        self._part()

    def forget_others(self) -> None:
        """Keeps no memory for tensors that are not this worker's."""
        self._all = [
            [held if id(held) in self._own else torch.nn.Parameter(held.detach().to("meta")) for held in group]
            for group in self._all
        ]

    def _part(self) -> None:
        """Leaves this worker's tensors to the optimizer."""
        for group, held in zip(self._inner.param_groups, self._all, strict=True):
            group["params"] = [parameter for parameter in held if id(parameter) in self._own]

    @contextmanager
    def _whole(self) -> Iterator[None]:
        for group, held in zip(self._inner.param_groups, self._all, strict=True):
            group["params"] = held
        try:
            yield
        finally:
            self._part()

    def step(self) -> None:
        self._inner.step()

    def state_dict(self) -> dict[str, Any]:
        """As the optimizer's own, of all tensors. A collective."""
        numbers = {id(held): number for number, held in enumerate(held for group in self._all for held in group)}
        own = {numbers[id(held)]: state for held, state in self._inner.state.items()}
        file = io.BytesIO()
        torch.save(own, file)
        found: dict[int, dict[str, Any]] = {}
        for told in self._gang.gather_bytes(file.getvalue()):
            found |= torch.load(io.BytesIO(told), weights_only=True, map_location=self._gang.device)
        with self._whole():
            groups = self._inner.state_dict()["param_groups"]
        return {"state": dict(sorted(found.items())), "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with self._whole():
            self._inner.load_state_dict(state)
            for held in [held for held in self._inner.state if id(held) not in self._own]:
                del self._inner.state[held]
