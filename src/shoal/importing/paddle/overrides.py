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
    path = tuple(key.strip().removeprefix("+").split("."))
    if not equals or not all(path):
        raise UsageError(f"-o {override}: expected KEY=VALUE, as in -o Optimizer.lr.learning_rate=0.1")
    if override.count("\0") or len(override) > 10_000:
        raise UsageError("-o: this is no override: it is too long, or binary")
    may_add = key.strip().startswith("+")
    at: Any = values
    for depth, step in enumerate(path):
        last, said = depth == len(path) - 1, ".".join(path[: depth + 1])
        if isinstance(at, list):
            at, step = at, _place(at, step, said, override)
        elif not isinstance(at, dict):
            raise UsageError(f"-o {override}: {'.'.join(path[:depth])} is {at!r}, with nothing below it")
        elif step not in at:
            if not may_add:
                raise UsageError(
                    f"-o {override}: no key {said} in the file{did_you_mean(step, map(str, at))}; "
                    f"a new one is said with a plus: -o +{'.'.join(path)}=…"
                )
            at[step] = {}
        if last:
            at[step] = yaml12.scalar(text)
        else:
            at[step] = at = dict(at[step]) if isinstance(at[step], dict) else at[step]
            if isinstance(at, type(None)) and may_add:
                raise UsageError(f"-o {override}: {said} is empty in the file; set it first")
    return path


def _place(held: list, step: str, said: str, override: str) -> int:
    if not (step.isascii() and step.isdigit()) or int(step) >= len(held):
        raise UsageError(f"-o {override}: {said}: a list of {len(held)}; its places are 0 to {len(held) - 1}")
    return int(step)
