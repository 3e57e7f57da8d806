"""Local: a KVStore in one process, over its devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from shoal.base.errors import UsageError
from shoal.kvstore import Key, KVStore
from shoal.kvstore.layout import Layout
from shoal.kvstore.updater import Updater, named


class Local(KVStore):
    """`local` adds on the CPU and keeps the values there; `device` adds on the device of a key's first value."""

    def __init__(self, type: str) -> None:
        super().__init__(type)
        self._stored: dict[Key, torch.Tensor] = {}
        self._updater: Callable[[Key, torch.Tensor, torch.Tensor], None] | None = None
        self._described: dict[str, Any] | None = None
        self._rescale = 1.0
        self._steppers: dict[Key, tuple[Updater, torch.Tensor]] = {}

    def _init(self, key: Key, value: torch.Tensor) -> None:
        kept = value.clone(memory_format=torch.contiguous_format)
        self._stored[key] = kept.cpu() if self.type == "local" else kept

    def _push(self, key: Key, values: list[torch.Tensor]) -> None:
        stored = self._stored[key]
        total = values[0].detach().to(stored.device, copy=True)
        for value in values[1:]:
            total += value.detach().to(stored.device)
        if self._updater is not None:
            self._updater(key, total, stored)
        elif self._described is None:
            stored.copy_(total)
        else:
            updater, gradient = self._stepper(key)
            torch.mul(total.reshape(-1), self._rescale, out=gradient)
            updater.step()

    def _stepper(self, key: Key) -> tuple[Updater, torch.Tensor]:
        assert self._described is not None
        if key not in self._steppers:
            stored = self._stored[key]
            gradient = torch.zeros(stored.numel(), dtype=stored.dtype, device=stored.device)
            layout = Layout.of([(str(key), stored)], whole=True)
            self._steppers[key] = (Updater(self._described, layout, 0, stored.view(-1), gradient), gradient)
        return self._steppers[key]

    def _pull(self, key: Key) -> torch.Tensor:
        return self._stored[key]

    def set_optimizer(self, optimizer: str | type, *, rescale_grad: float = 1.0, **options: Any) -> None:
        name = optimizer if isinstance(optimizer, str) else optimizer.__name__
        self._described, self._rescale = named(name, options), rescale_grad
        self._updater, self._steppers = None, {}

    def set_learning_rate(self, lr: float) -> None:
        if self._described is None:
            raise UsageError("set_learning_rate: no optimizer was set")
        self._described["groups"][0]["lr"] = lr
        for updater, _ in self._steppers.values():
            for group in updater.optimizer.param_groups if updater.optimizer else ():
                group["lr"] = lr

    def set_updater(self, updater: Callable[[Key, torch.Tensor, torch.Tensor], None]) -> None:
        self._updater = updater

    def set_gradient_compression(self, compression: dict[str, Any]) -> None:
        raise UsageError(f"{self.type}: gradients are compressed on their way to servers only (dist_*)")

    def save_optimizer_states(self, path: str | Path) -> None:
        if self._described is None:
            raise UsageError("save_optimizer_states: no optimizer was set")
        held: dict[str, torch.Tensor] = {}
        for number, key in enumerate(self._keys):
            state = self._stepper(key)[0].state() if key in self._steppers else {}
            held |= {f"{number}/{name}": value.contiguous().clone() for name, value in state.items()}
        save_file(held, str(path))

    def load_optimizer_states(self, path: str | Path) -> None:
        if self._described is None:
            raise UsageError("load_optimizer_states: no optimizer was set; call set_optimizer first")
        held = load_file(str(path))
        for number, key in enumerate(self._keys):
            prefix = f"{number}/"
            state = {name.removeprefix(prefix): value for name, value in held.items() if name.startswith(prefix)}
            self._stepper(key)[0].load(state)
