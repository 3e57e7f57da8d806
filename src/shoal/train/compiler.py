"""torch's compiler, left out of processes that compile nothing: 1.3 s of a processor and 150 MB for each.

torch.optim imports torch._dynamo at its first use, only to tell the compiler to keep away from it; and
DistributedDataParallel, to ask whether it is compiled.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"


def leave_out() -> None:
    """Until somebody asks for more of it than to be left alone. Does nothing where it is loaded already."""
    if _NAME not in sys.modules:
        sys.modules[_NAME] = torch._dynamo = _Absent(_NAME)  # type: ignore[assignment]


class _Utils:
    """What DistributedDataParallel wants of torch._dynamo.utils."""

    @staticmethod
    def get_optimize_ddp_mode() -> str:
        return "no_optimization"

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(f"{_NAME}.utils"), name)


class _Absent(ModuleType):
    """What the two want of torch._dynamo; any other wish loads the real one in its place."""

    utils = _Utils()

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Where the compiler is to interrupt its work."""

    @staticmethod
    def disable(fn: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """`fn`, out of the compiler's reach."""
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # asked of all modules by those who look through them
            raise AttributeError(name)
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        return getattr(importlib.import_module(_NAME), name)
