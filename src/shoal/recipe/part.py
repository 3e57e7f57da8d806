"""Part: a frozen set of options with a name, that can be swapped. A seam is a folder of parts.

A part's file is called after the part (`one_cycle.py` holds `one_cycle`), holds its options and its verbs, and is
torch-free at import. No table of parts is kept anywhere: a new file in the folder is a new part.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from functools import cache
from typing import Any, ClassVar

import msgspec

SEAMS = {
    "sources": "shoal.data.sources",
    "decoders": "shoal.data.decoders",
    "policies": "shoal.data.augment.policies",
    "tasks": "shoal.step.tasks",
    "optims": "shoal.step.optims",
    "schedules": "shoal.step.schedules",
    "precisions": "shoal.step.precisions",
    "strategies": "shoal.strategies",
    "launchers": "shoal.launch.launchers",
}
"""Seam -> the package whose files are its parts."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A group of options: typed, frozen, unknown keys refused. A docstring under each field is its help."""

    def faults(self) -> list[tuple[str, str]]:
        """(key, what is wrong) for combinations that no single field shows; empty when all is well."""
        return []


class Part(Options, frozen=True, kw_only=True):
    """Options that have a name and a seam."""

    name: str

    SEAM: ClassVar[str] = ""


@cache
def names(seam: str) -> tuple[str, ...]:
    """Names of a seam's parts, by listing its folder; nothing is imported but the (empty) package."""
    package = importlib.import_module(SEAMS[seam])
    found = [module.name for module in pkgutil.iter_modules(package.__path__) if not module.ispkg]
    return tuple(sorted(module for module in found if not module.startswith("_")))


@cache
def kind(seam: str, name: str) -> type[Part] | None:
    """The part `name` of a seam, or None. Only that one file is imported; installed packages are asked last."""
    if name in names(seam):
        return _part_in(importlib.import_module(f"{SEAMS[seam]}.{name}"), seam)
    if _someone_adds_parts():
        from importlib.metadata import entry_points

        for entry in entry_points(group=f"shoal.{seam}", name=name):
            return entry.load()
    return None


@cache
def _someone_adds_parts() -> bool:
    """Whether any installed package names parts of Shoal. Looked up by hand, because a misspelt name comes here too,
    and importlib.metadata would cost more time than all the rest of the answer."""
    for folder in sys.path:
        try:
            listed = [entry.path for entry in os.scandir(folder or ".") if entry.name.endswith(".dist-info")]
        except OSError:
            continue
        for path in listed:
            try:
                with open(f"{path}/entry_points.txt", encoding="utf-8") as file:
                    if "[shoal." in file.read():
                        return True
            except OSError:
                continue
    return False


def kinds(seam: str) -> dict[str, type[Part]]:
    """All parts of a seam by name."""
    return {name: part for name in names(seam) if (part := kind(seam, name)) is not None}


def _part_in(module: Any, seam: str) -> type[Part]:
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Part) and value.__module__ == module.__name__:
            return value
    raise TypeError(f"{module.__name__}: no Part in it, yet it lies in the folder of seam {seam}")


def field_help(options: type) -> dict[str, str]:
    """Field -> the docstring under it, base classes included; read from the source, and only when someone asks."""
    import ast
    import inspect
    import textwrap

    found: dict[str, str] = {}
    for owner in reversed(options.__mro__):
        if not (isinstance(owner, type) and issubclass(owner, msgspec.Struct)) or owner is msgspec.Struct:
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:], strict=False):
            is_field = isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            is_field = is_field and "ClassVar" not in ast.unparse(statement.annotation)  # type: ignore[union-attr]
            if is_field and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                found[statement.target.id] = inspect.cleandoc(str(following.value.value))  # type: ignore[union-attr]
    return found
