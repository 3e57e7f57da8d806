"""The JSON Schema of recipes, from which editors complete, explain and check them while they are written."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from shoal.base.duration import FORM, Duration
from shoal.recipe.check import arms, default_of, fields, item_of, options_of, seam_of
from shoal.recipe.load import plain
from shoal.recipe.part import Options, field_help, kinds
from shoal.recipe.recipe import Recipe

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """All recipe keys and all parts. What no single key shows (`Options.faults`) is left to `load`."""
    return {"$schema": DRAFT, "title": "Shoal recipe", **_group(Recipe)}


def _group(options: type[Options]) -> dict[str, Any]:
    help_of = field_help(options)
    keys = {field.name: field for field in msgspec.structs.fields(options)}
    properties: dict[str, Any] = {}
    for key, wanted in fields(options).items():
        default = default_of(wanted) or _default(keys[key])
        properties[key] = {
            **_value(wanted),
            **({"description": help_of[key]} if key in help_of else {}),
            **({"default": plain(default)} if default is not msgspec.NODEFAULT else {}),
        }
    required = [key for key, wanted in fields(options).items() if keys[key].required and not default_of(wanted)]
    return {
        "type": "object",
        "description": inspect.cleandoc(options.__doc__ or ""),
        "properties": properties,
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _value(wanted: Any) -> dict[str, Any]:
    seam, options, item = seam_of(wanted), options_of(wanted), item_of(wanted)
    if seam is not None:
        return _or_null(_seam(seam, default_of(wanted)), wanted)
    if options is not None:
        group = _group(options)
        name = group["properties"].get("name")
        return _or_null({"anyOf": [name, group]} if name else group, wanted)
    if Duration in arms(wanted):
        return _or_null({"type": "string", "pattern": FORM.pattern}, wanted)
    if Duration in arms(item):
        return {"type": "array", "items": _value(item)}
    return msgspec.json.schema(wanted)


def _or_null(form: dict[str, Any], wanted: Any) -> dict[str, Any]:
    return {"anyOf": [form, {"type": "null"}]} if type(None) in arms(wanted) else form


def _seam(seam: str, default: str | None) -> dict[str, Any]:
    """One of the parts: a group that says its name, or the bare name of a part that can do without options."""
    forms: list[dict[str, Any]] = []
    bare: list[str] = []
    for name, part in kinds(seam).items():
        group = _group(part)
        if not group.get("required"):
            bare.append(name)
        forms.append(_called(name, group, needed=name != default))
    return {"oneOf": [*([{"enum": bare, "description": "A name alone: all its defaults."}] if bare else []), *forms]}


def _called(name: str, group: dict[str, Any], *, needed: bool) -> dict[str, Any]:
    properties = {**group["properties"], "name": {"const": name}}
    required = [*(["name"] if needed else []), *(key for key in group.get("required", []) if key != "name")]
    return {**group, "title": name, "properties": properties, "required": required}
