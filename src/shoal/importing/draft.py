"""Draft: a recipe in the making, with a reason above what needs one, and the words that start it."""

from __future__ import annotations

import shlex
import textwrap
from typing import Any

import yaml

from shoal.recipe import yaml12

ORDER = (
    "data",
    "model",
    "task",
    "optim",
    "schedule",
    "batch",
    "batch_per_worker",
    "shards",
    "accumulate",
    "drop_last",
    "length",
    "precision",
    "strategy",
    "norm",
    "seed",
    "ema",
    "eval_every",
    "save_every",
    "log_every",
    "desired_accuracy",
)
"""Order of the keys in what is written."""


class Draft:
    """Keys of a recipe by dotted path. `name`: what the recipe's file will be called; `source`: what it was made of."""

    def __init__(self, name: str, source: str) -> None:
        self.name, self.source = name, source
        self.keys: dict[str, Any] = {}
        self.reasons: dict[str, list[str]] = {}
        self.launch: list[str] = []

    def set(self, path: str, value: Any, why: str | None = None) -> None:
        """Sets a key; `why` becomes a comment above its group."""
        *groups, last = path.split(".")
        at = self.keys
        for group in groups:
            held = at.get(group)
            at[group] = at = held if isinstance(held, dict) else {} if held is None else {"name": held}
        at[last] = value
        if why:
            self.say(path, why)

    def say(self, path: str, why: str) -> None:
        """A comment above the group that `path` is in."""
        self.reasons.setdefault(path.partition(".")[0], []).append(why)

    def get(self, path: str) -> Any:
        at: Any = self.keys
        for step in path.split("."):
            at = at.get(step) if isinstance(at, dict) else None
        return at

    def text(self, told: list[str]) -> str:
        """The recipe as YAML with its comments; `told`: what was left out, for the head."""
        lines = [f"# Imported from {self.source}. Train it with:", f"#   {self.command(f'{self.name}.yaml')}"]
        if told:
            lines.append("# Left out, as Shoal has no counterpart:")
            lines += [line for one in told for line in _comment(one, "  - ")]
        for key in (*ORDER, *(key for key in self.keys if key not in ORDER)):
            if key in self.keys:
                lines += [line for why in self.reasons.get(key, ()) for line in _comment(why)]
                lines.append(_line(key, self.keys[key]))
        return "\n".join(lines) + "\n"

    def command(self, file: str) -> str:
        return shlex.join(["shoal", "train", file, *self.launch])


def _comment(text: str, mark: str = "") -> list[str]:
    return textwrap.wrap(text, 118, initial_indent=f"# {mark}", subsequent_indent="# " + " " * len(mark))


def _line(key: str, value: Any) -> str:
    """One key, in one line where it fits."""
    for flow in (True, None):
        text = _dumped(value, flow)
        if not isinstance(value, dict) or (flow and len(f"{key}: {text}") <= 120 and "\n" not in text):
            return f"{key}: {text}"
    return f"{key}:\n{textwrap.indent(_dumped(value, None), '  ')}"


def _dumped(value: Any, flow: bool | None) -> str:
    text = yaml.dump(
        value, Dumper=yaml12.Dumper, default_flow_style=flow, sort_keys=False, allow_unicode=True, width=110
    )
    return text.removesuffix("...\n").rstrip("\n")
