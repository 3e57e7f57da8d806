"""Reads a recipe: file, overrides, all faults at once with file:line, and back to a file again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shoal.base.duration import Duration
from shoal.base.errors import UsageError
from shoal.recipe import yaml12
from shoal.recipe.check import Fault, build, default_of, fields, options_of, seam_of, shown
from shoal.recipe.find import FILES, find
from shoal.recipe.part import Options
from shoal.recipe.recipe import Recipe

COMMAND_LINE = "command line"


class RecipeError(UsageError):
    """All faults of a recipe, one line each: where, key, what is wrong and what would be right."""


@dataclass(frozen=True)
class Loaded:
    """A valid recipe, what it is called, and what was changed on the way that its author should know."""

    recipe: Recipe
    name: str
    notes: tuple[str, ...]


def load(reference: str, overrides: Sequence[str] = ()) -> Loaded:
    """Reads the recipe `reference` names, with `key.key=value` overrides. RecipeError tells all faults at once."""
    path = find(reference)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"recipe {path}: cannot be read ({reason})") from None
    return parse(text, _shown(path, reference), overrides, name=path.stem)


def parse(text: str, file: str, overrides: Sequence[str] = (), *, name: str = "recipe") -> Loaded:
    """As `load`, from text; `file` is what faults call it."""
    raw, lines = yaml12.read(text, file)
    where = {at: f"{file}:{line}" for at, line in lines.items()}
    faults: list[Fault] = []
    notes: list[str] = []
    for override in sorted(overrides, key=_reach):
        _override(raw, override, where, faults, notes)
    recipe = build(Recipe, raw, (), faults)
    if faults:
        raise RecipeError("\n".join(_told(fault, where, file) for fault in faults))
    return Loaded(recipe, name, tuple(notes))


def plain(options: Any) -> Any:
    """Options as plain YAML values: a Duration is its text, absent (null) keys stay, so the file is complete."""
    if isinstance(options, Options):
        return {field.name: plain(getattr(options, field.name)) for field in msgspec.structs.fields(type(options))}
    if isinstance(options, Duration):
        return str(options)
    if isinstance(options, (tuple, list)):
        return [plain(item) for item in options]
    if isinstance(options, dict):
        return {key: plain(value) for key, value in options.items()}
    return options


def dump(recipe: Recipe) -> str:
    """The resolved recipe as YAML; `parse` reads it back to an equal Recipe."""
    return yaml12.write(plain(recipe))


def flat(recipe: Recipe) -> dict[str, Any]:
    """Dotted key -> value, for comparing two recipes."""

    def walk(value: Any, at: str) -> dict[str, Any]:
        if isinstance(value, dict):
            return {k: v for key, item in value.items() for k, v in walk(item, f"{at}.{key}" if at else key).items()}
        return {at: value}

    return walk(plain(recipe), "")


def _reach(override: str) -> int:
    """Sorts whole groups and names before single keys, so that `optim.lr=0.1 optim=adamw` keeps its rate."""
    at = override.partition("=")[0].split(".")
    return len(at) - (at[-1] == "name")


def _override(raw: dict, text: str, where: dict, faults: list[Fault], notes: list[str]) -> None:
    key, equals, value_text = text.partition("=")
    at = tuple(key.strip().split("."))
    if not equals or not all(at):
        faults.append(Fault((text,), "an override is key=value, as in optim.lr=0.1"))
        where[(text,)] = COMMAND_LINE
        return
    value = yaml12.scalar(value_text)
    if _named(at[0]) and at[1:] in ((), ("name",)) and isinstance(value, str):
        value, options = short_form(value) if seam_of(fields(Recipe)[at[0]]) else (value, {})
        if _rename(raw, at[0], value, notes):
            _forget(at[:1], where)
        for option, held in options.items():
            raw[at[0]] = {**_group_of(raw[at[0]]), option: held}
            _forget((at[0], option), where)
        at = (at[0], "name")
    group: Any = raw
    for depth, step in enumerate(at[:-1], 1):
        held = group.get(step)
        if isinstance(held, str) and (depth > 1 or _named(step)):  # the short form `optim: sgd`; below, build() judges
            held = _group_of(held)
        if held is not None and not isinstance(held, dict):
            faults.append(Fault(at, f"{'.'.join(at[:depth])} is {shown(held)}, not a group of keys"))
            where[at] = COMMAND_LINE
            return
        group[step] = group = dict(held or {})  # a copy: YAML's aliases let several keys share one group
        where.setdefault(at[:depth], COMMAND_LINE)
    group[at[-1]] = value
    _forget(at, where)
    other = {"batch": "batch_per_worker", "batch_per_worker": "batch"}.get(".".join(at))
    if other and value is not None and raw.get(other) is not None:  # two ways to say one thing: the last word counts
        del raw[other]
        notes.append(f"{at[0]}={value}: the recipe's {other} was dropped")


def short_form(text: str) -> tuple[str, dict[str, Any]]:
    """A part on a command line: `ps:mode=async,on_dead=stop` -> its name and its options; a bare name has none."""
    name, _, options = text.partition(":")
    if not all("=" in option for option in options.split(",")):
        return text, {}
    pairs = (option.partition("=") for option in options.split(","))
    return name, {key.strip(): yaml12.scalar(value) for key, _, value in pairs}


def changed(options: Options) -> dict[str, Any]:
    """Key -> plain value, 5 for 5.0, of what is not as it is where nobody says anything, the name left out."""
    usual = plain(type(options)())
    found = {key: held for key, held in plain(options).items() if key != "name" and held != usual[key]}
    return {key: int(held) if isinstance(held, float) and held.is_integer() else held for key, held in found.items()}


def words(held: Mapping[str, Any]) -> list[str]:
    """KEY=VALUE of each, as overrides are written."""
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in held.items()]


def strategies_in(text: str) -> list[str]:
    """`ps:mode=async,on_dead=stop,ddp` -> the strategies: a comma before KEY=VALUE belongs to the one before it."""
    found: list[str] = []
    for word in (word.strip() for word in text.split(",")):
        if not word:
            raise UsageError(f"--strategies {text}: a name is missing; as in ddp,ps,ps:mode=async")
        if "=" in word and ":" not in word and found:
            found[-1] += f",{word}"
        else:
            found.append(word)
    return found


def _group_of(held: Any) -> dict[str, Any]:
    return held if isinstance(held, dict) else {"name": held}


def _forget(at: tuple[str, ...], where: dict) -> None:
    """What the file said at `at` and below is replaced by the command line."""
    for old in [known for known in where if known[: len(at)] == at]:
        del where[old]
    where[at] = COMMAND_LINE


def _named(key: str) -> bool:
    """Whether a key of the recipe holds a group with a name, which its short form gives alone."""
    wanted = fields(Recipe).get(key)
    options = options_of(wanted)
    return seam_of(wanted) is not None or (options is not None and "name" in fields(options))


def _rename(raw: dict, key: str, name: str, notes: list[str]) -> bool:
    """A new part does not inherit the options of the old one: they mean something else, or nothing, to it."""
    held = raw.get(key)
    if not isinstance(held, dict):
        raw[key] = {"name": name}
        return True
    old_name = held.get("name", default_of(fields(Recipe)[key]))
    if old_name in (None, name):
        return False
    dropped = [f"{key}.{old}" for old in held if old != "name"]
    if dropped:
        notes.append(f"{key}.name={name}: the options of {old_name} were dropped ({', '.join(dropped)})")
    raw[key] = {"name": name}
    return True


def _told(fault: Fault, where: dict[tuple[str, ...], str], file: str) -> str:
    place = next((where[fault.at[:n]] for n in range(len(fault.at), 0, -1) if fault.at[:n] in where), file)
    return f"{place}: {'.'.join(fault.at)}: {fault.text}"


def _shown(path: Path, reference: str) -> str:
    return path.name if path.parent == FILES and path != Path(reference) else str(path)
