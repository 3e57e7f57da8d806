"""YAML read by the 1.2 core rules, with the line of every key.

PyYAML's own loader follows YAML 1.1: there `1e-3` is text, `on` is true and `12:30` is 750.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from shoal.base.errors import UsageError

Path = tuple[str, ...]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Loader(_LOADER):
    """A safe loader with the scalar rules of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict = {}  # noqa: RUF012  (PyYAML reads this class attribute)


class Dumper(yaml.SafeDumper):
    """A safe dumper that quotes every text which YAML 1.1 or 1.2 would read as something else."""


_NUMBER = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
for _tag, _form, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", rf"{_NUMBER}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", list("-+.0123456789")),
):
    for _rules in (Loader, Dumper):
        _rules.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_form})\Z"), _first)


def _int(loader: Any, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, 8 if text.startswith("0o") else 16 if text.startswith("0x") else 10)


def _text(dumper: Any, text: str) -> yaml.ScalarNode:
    # Double quotes escape what other styles would fold: line ends of all kinds, and spaces that look like none.
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


Loader.add_constructor("tag:yaml.org,2002:int", _int)
Dumper.add_representer(str, _text)


def scalar(text: str) -> Any:
    """The value of one override, `0.1` or `[1, 2]`; text that is no YAML stays text."""
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError:
        return text


def read(text: str, file: str) -> tuple[dict[str, Any], dict[Path, int]]:
    """The document as plain values, and the line (1-based) of each key. UsageError with file:line when it is none."""
    lines: dict[Path, int] = {}
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return {}, lines
        if not isinstance(node, yaml.MappingNode):
            raise UsageError(f"{file}:{node.start_mark.line + 1}: a recipe is a mapping of keys to values")
        _note_lines(node, (), lines, file, ())
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark else 0
        begun = error.context_mark.line + 1 if error.context_mark else 0
        context = f"{error.context} (begun in line {begun})" if 0 < begun <= line else error.context
        told = ", ".join(filter(None, (context, error.problem)))
        tab = "; indent with spaces, not tabs" if re.match(r" *\t", "".join(text.splitlines()[line : line + 1])) else ""
        raise UsageError(f"{file}:{line + 1}: not valid YAML: {told}{tab}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(f"{file}:{line}: not valid YAML: {error.reason}") from None


def _note_lines(node: yaml.Node, at: Path, lines: dict[Path, int], file: str, above: tuple[yaml.Node, ...]) -> None:
    """Notes the line of every key and list item under `node`; `above` are the nodes it lies in."""
    if node in above:
        raise UsageError(f"{file}:{node.start_mark.line + 1}: {'.'.join(at)}: contains itself")
    if isinstance(node, yaml.MappingNode):
        held = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        held = [(str(place), value, value) for place, value in enumerate(node.value)]
    else:
        return
    for key, place, value in held:
        line = place.start_mark.line + 1
        if (*at, key) in lines:
            raise UsageError(f"{file}:{line}: {'.'.join((*at, key))}: written twice (first in line {lines[*at, key]})")
        lines[*at, key] = line
        _note_lines(value, (*at, key), lines, file, (*above, node))


def write(document: dict[str, Any]) -> str:
    """The document as YAML that `read` reads back to the same values."""
    return yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)
