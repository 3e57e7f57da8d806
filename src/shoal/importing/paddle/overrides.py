"""Overrides: PaddleClas's `-o Optimizer.lr.learning_rate=0.1`, without its `eval`."""

from __future__ import annotations

from typing import Any

from shoal.base.errors import UsageError, did_you_mean
from shoal.recipe import yaml12


def apply(values: dict[str, Any], override: str) -> tuple[str, ...]:
    """Sets one key of `values` and returns its path. `a.b.0.c=v`: numbers are places in lists, v is read as YAML.

    PaddleClas makes keys that are not there, so that a slip of the finger changes nothing and says little; here they
    are UsageErrors, unless the key begins with a `+`.
    """
    key, equals, text = override.partition("=")
    may_add, path = key.strip().startswith("+"), tuple(key.strip().removeprefix("+").split("."))
    if not equals or not all(path):
        raise UsageError(f"-o {override}: expected KEY=VALUE, as in -o Optimizer.lr.learning_rate=0.1")
    at: Any = values
    for depth, step in enumerate(path):
        said: str = ".".join(path[: depth + 1])
        place: Any = step
        if isinstance(at, list):
            place = _place(at, step, said, override)
        elif not isinstance(at, dict):
            raise UsageError(f"-o {override}: {'.'.join(path[:depth])} is {at!r}, with nothing below it")
        elif step not in at:
            if not may_add:
                raise UsageError(
                    f"-o {override}: no key {said} in the file{did_you_mean(step, map(str, at))}; "
                    f"a new one is said with a plus: -o +{'.'.join(path)}=…"
                )
            at[step] = {}
        if depth == len(path) - 1:
            at[place] = yaml12.scalar(text)
        elif isinstance(at[place], dict):
            at[place] = dict(at[place])  # a copy: YAML's aliases let several keys share one group
        at = at[place]
    return path


def _place(held: list, step: str, said: str, override: str) -> int:
    if not (step.isascii() and step.isdigit()) or int(step) >= len(held):
        raise UsageError(f"-o {override}: {said}: a list of {len(held)}; its places are 0 to {len(held) - 1}")
    return int(step)
