"""Turns plain values into options, and says everything that is wrong with them at once."""

from __future__ import annotations

import importlib
import math
import types
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from shoal.base.duration import HELP as DURATION_HELP
from shoal.base.duration import Duration
from shoal.base.errors import closest, did_you_mean
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
        faults.append(Fault(at, f"expected {_group(cls)}, got {shown(raw)}"))
        return _BAD
    found = len(faults)
    known = fields(cls)
    values: dict[str, Any] = {}
    for key in raw:
        if key not in known:
            faults.append(Fault((*at, str(key)), f"unknown key{did_you_mean(key, known)}"))
    defaults = {field.name: field for field in msgspec.structs.fields(cls)}
    for key, wanted in known.items():
        default = default_of(wanted)
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
        faults.append(Fault(at, f"expected {_seam(seam)}: a name, or a group of keys with a name; got {shown(raw)}"))
        return _BAD
    name = raw.get("name")
    if name is None:
        faults.append(Fault((*at, "name"), f"missing; which of: {', '.join(names(seam))}?"))
        return _BAD
    cls = kind(seam, str(name))
    if cls is None:
        text = f"no {seam_word(seam)} called {shown(name)}{did_you_mean(str(name), names(seam))}"
        faults.append(Fault((*at, "name"), text))
        return _BAD
    return build(cls, raw, at, faults)


def seam_word(seam: str) -> str:
    return {"strategies": "strategy", "policies": "policy"}.get(seam, seam[:-1])


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
    return next((arm for arm in arms(wanted) if isinstance(arm, type) and issubclass(arm, Options)), None)


def seam_of(wanted: Any) -> str | None:
    """The seam whose part a field holds, when it holds one."""
    return _extra(wanted).get("seam")


def default_of(wanted: Any) -> str | None:
    """The name of the part that a field holds where the recipe names none."""
    return _extra(wanted).get("default")


def item_of(wanted: Any) -> Any:
    """The type of a list's items, when a field holds a list of any length; else None."""
    for arm in arms(wanted):
        items = get_args(arm)
        if get_origin(arm) is list or (get_origin(arm) is tuple and items[-1] is Ellipsis):
            return items[0]
    return None


def shown(raw: Any) -> str:
    """A value as a recipe would write it, for messages; long ones are cut."""
    if isinstance(raw, (list, dict)):
        import yaml  # only on the way to an error

        text = yaml.safe_dump(raw, default_flow_style=True, sort_keys=False, width=1000, allow_unicode=True).strip()
    else:
        text = "null" if raw is None else str(raw).lower() if isinstance(raw, bool) else repr(raw)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _value(wanted: Any, raw: Any, at: Path, faults: list[Fault]) -> Any:
    if raw is None and type(None) in arms(wanted):
        return None
    seam = seam_of(wanted)
    if seam is not None:
        default = default_of(wanted)
        if isinstance(raw, dict) and "name" not in raw and default is not None:
            raw = {"name": default, **raw}
        return part(seam, raw, at, faults)
    options = options_of(wanted)
    if options is not None:
        return build(options, {"name": raw} if isinstance(raw, str) and "name" in fields(options) else raw, at, faults)
    item = item_of(wanted)
    if isinstance(raw, list) and Duration in arms(item):
        return tuple(_value(item, one, (*at, str(place)), faults) for place, one in enumerate(raw))
    try:
        if Duration in arms(wanted):
            return Duration.parse(raw)
        value = msgspec.convert(raw, wanted)
    except ValueError as error:
        choices = [str(choice) for arm in arms(wanted) if get_origin(arm) is Literal for choice in get_args(arm)]
        if Duration in arms(wanted):
            text = str(error)
        else:
            text = f"expected {describe(wanted)}, got {shown(raw)}{closest(str(raw), choices)}"
        faults.append(Fault(at, text))
        return _BAD
    if isinstance(value, float) and not math.isfinite(value):
        faults.append(Fault(at, f"expected {describe(wanted)}, and a finite one, got {value}"))
        return _BAD
    return value


def _extra(wanted: Any) -> dict[str, Any]:
    for meta in getattr(wanted, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.extra:
            return meta.extra
    return {}


def arms(wanted: Any) -> list[Any]:
    """The alternatives of a type, Annotated ones bared."""
    if get_origin(wanted) is Annotated:
        return arms(get_args(wanted)[0])
    if get_origin(wanted) in (Union, types.UnionType):
        return [bare for arm in get_args(wanted) for bare in arms(arm)]
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
            yield _seam(seam)
            yield from ["null"] * (type(None) in arms(wanted))
            return
        options = options_of(wanted)
        if options is not None:
            yield _group(options)
            return
        inner, *metas = get_args(wanted)
        limits = " and ".join(
            f"{sign} {limit:g}" if isinstance(limit, float) else f"{sign} {limit}"
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
    elif origin in (tuple, list):
        item = item_of(wanted)
        yield f"a list of {len(get_args(wanted))} numbers" if item is None else f"a list, each {describe(item)}"
    elif origin is dict or wanted is dict:
        yield "a group of keys"
    elif isinstance(wanted, type) and issubclass(wanted, Options):
        yield _group(wanted)
    else:
        yield _WORDS.get(wanted, str(wanted))


def _seam(seam: str) -> str:
    word = seam_word(seam)
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word} ({', '.join(names(seam))})"


def _group(options: type[Options]) -> str:
    return f"{'a name or ' if 'name' in fields(options) else ''}a group of keys ({', '.join(fields(options))})"
