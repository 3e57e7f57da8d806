"""Shoal trains image classifiers on one machine or on many: the recipe decides the trajectory, the cluster how fast.

In Python as on the command line; nothing heavy is imported before one of these is used:

    run = shoal.train("digits", ["length=5ep"])          # a Run: its folder, and metrics()
    model = shoal.load(run)                              # a torch module with its preprocessing
    model.predict(["a.jpg", "b.jpg"], top=3)             # names and probabilities
"""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shoal.api import load as load
    from shoal.api import train as train
    from shoal.base.errors import ShoalError as ShoalError
    from shoal.base.errors import UsageError as UsageError
    from shoal.base.run import Run as Run

_HOMES = {
    "load": "shoal.api",
    "train": "shoal.train",
    "Run": "shoal.base.run",
    "ShoalError": "shoal.base.errors",
    "UsageError": "shoal.base.errors",
}
"""Name -> the module that holds it, imported when it is used."""


class Room(types.ModuleType):
    """A folder of modules that can be called: `shoal.train` is one, and what trains a recipe."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        verb = self.__name__.rpartition(".")[2]
        return getattr(importlib.import_module("shoal.api"), verb)(*args, **options)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal' has no attribute '{name}'")
    home = importlib.import_module(_HOMES[name])
    return home if home.__name__ == f"shoal.{name}" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
