"""Turns plain values into options, and says everything that is wrong with them at once."""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from shoal.base.duration import HELP as DURATION_HELP
from shoal.base.duration import Duration
from shoal.base.errors import did_you_mean
from shoal.recipe.part import Options, kind, names

Path = tuple[str, ...]
_BAD = object()


class Fault(NamedTuple):
    """One thing that is wrong; `at` is the dotted key it is about."""

    at: Path
    text: str


def build(cls: type[Options], raw: Any, at: Path, faults: list[Fault]) -> Any:
    """`raw` as a `cls`, or a sentinel after adding to `faults`; unknown, missing and ill-typed keys are all found."""
    if not isinstance(raw, dict):
        faults.append(Fault(at, f"expected a group of keys ({', '.join(fields(cls))}), got {raw!r}"))
        return _BAD
    found = len(faults)
    known = fields(cls)
    values: dict[str, Any] = {}
    for key in raw:
        if key not in known:
            faults.append(Fault((*at, str(key)), f"unknown key{did_you_mean(key, known)}"))
    defaults = {field.name: field for field in msgspec.structs.fields(cls)}
    for key, wanted in known.items():
        default = _extra(wanted).get("default")
        if key in raw or default is not None:
            values[key] = _value(wanted, raw.get(key, default), (*at, key), faults)
        elif defaults[key].required:
            faults.append(Fault((*at, key), f"missing; {describe(wanted)} is needed"))
    if len(faults) > found:
        return _BAD
    built = cls(**values)
    faults.extend(Fault((*at, *key.split(".")), text) for key, text in built.faults())
    return built


def part(seam: str, raw: Any, at: Path, faults: list[Fault]) -> Any:
    """The part of `seam` that `raw` names: a bare name, or a group of keys with `name` among them."""
    raw = {"name": raw} if isinstance(raw, str) else raw
    if not isinstance(raw, dict):
        faults.append(Fault(at, f"expected a name or a group of keys with a name, got {raw!r}"))
        return _BAD
    name = raw.get("name")
    if name is None:
        faults.append(Fault((*at, "name"), f"missing; which of: {', '.join(names(seam))}?"))
        return _BAD
    cls = kind(seam, str(name))
    if cls is None:
        faults.append(Fault((*at, "name"), f"no {seam_word(seam)} called {name!r}{did_you_mean(name, names(seam))}"))
        return _BAD
    return build(cls, raw, at, faults)


def seam_word(seam: str) -> str:
    return {"strategies": "strategy"}.get(seam, seam[:-1])


@cache
def fields(cls: type[Options]) -> dict[str, Any]:
    """Field -> its full type, in order."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in msgspec.structs.fields(cls)}


def options_of(wanted: Any) -> type[Options] | None:
    """The options class a field holds, when it holds one."""
    named = _extra(wanted).get("options")
    if named:
        module, _, attribute = named.partition(":")
        return getattr(importlib.import_module(module), attribute)
    return next((arm for arm in _arms(wanted) if isinstance(arm, type) and issubclass(arm, Options)), None)


def seam_of(wanted: Any) -> str | None:
    """The seam whose part a field holds, when it holds one."""
    return _extra(wanted).get("seam")


def _value(wanted: Any, raw: Any, at: Path, faults: list[Fault]) -> Any:
    seam = seam_of(wanted)
    if seam is not None:
        default = _extra(wanted).get("default")
        unnamed = isinstance(raw, dict) and "name" not in raw and default is not None
        return part(seam, {"name": default, **raw} if unnamed else raw, at, faults)
    if raw is None and type(None) in _arms(wanted):
        return None
    options = options_of(wanted)
    if options is not None:
        return build(options, {"name": raw} if isinstance(raw, str) and "name" in fields(options) else raw, at, faults)
    try:
        if Duration in _arms(wanted):
            return Duration.parse(raw)
        return msgspec.convert(raw, wanted)
    except ValueError as error:
        choices = [choice for arm in _arms(wanted) if get_origin(arm) is Literal for choice in get_args(arm)]
        if Duration in _arms(wanted):
            text = str(error)
        elif isinstance(raw, str) and choices:
            text = f"expected {describe(wanted)}, got {raw!r}{did_you_mean(raw, [str(c) for c in choices])}"
        else:
            text = f"expected {describe(wanted)}, got {raw!r}"
        faults.append(Fault(at, text))
        return _BAD


def _extra(wanted: Any) -> dict[str, Any]:
    for meta in getattr(wanted, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.extra:
            return meta.extra
    return {}


def _arms(wanted: Any) -> list[Any]:
    """The alternatives of a type, Annotated ones bared."""
    if get_origin(wanted) is Annotated:
        return _arms(get_args(wanted)[0])
    if get_origin(wanted) in (Union, types.UnionType):
        return [bare for arm in get_args(wanted) for bare in _arms(arm)]
    return [wanted]


_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "null",
    Duration: DURATION_HELP.removeprefix("a duration is "),
    Any: "any value",
}


def describe(wanted: Any) -> str:
    """A type in plain words: `a whole number >= 1 or auto`."""
    return " or ".join(_describe(wanted))


def _describe(wanted: Any) -> Iterator[str]:
    origin = get_origin(wanted)
    if origin is Annotated:
        seam = seam_of(wanted)
        if seam is not None:
            yield f"a part ({', '.join(names(seam))})"
            return
        inner, *metas = get_args(wanted)
        limits = " and ".join(
            f"{sign} {limit:g}"
            for meta in metas
            if isinstance(meta, msgspec.Meta)
            for sign, limit in ((">", meta.gt), (">=", meta.ge), ("<", meta.lt), ("<=", meta.le))
            if limit is not None
        )
        yield " ".join(filter(None, (describe(inner), limits)))
    elif origin in (Union, types.UnionType):
        for arm in get_args(wanted):
            yield from _describe(arm)
    elif origin is Literal:
        yield " | ".join(map(str, get_args(wanted)))
    elif origin is tuple:
        arms = [arm for arm in get_args(wanted) if arm is not Ellipsis]
        yield f"a list of {len(arms)} numbers" if Ellipsis not in get_args(wanted) else f"a list of {describe(arms[0])}"
    elif origin is dict or wanted is dict:
        yield "a group of keys"
    elif isinstance(wanted, type) and issubclass(wanted, Options):
        yield f"a group of keys ({', '.join(fields(wanted))})"
    else:
        yield _WORDS.get(wanted, str(wanted))
