"""YAML read by the 1.2 core rules, with the line of every key.

PyYAML's own loader follows YAML 1.1: there `1e-3` is text, `on` is true and `12:30` is 750.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from shoal.base.errors import UsageError

Path = tuple[str, ...]

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Loader(_LOADER):
    """A safe loader with the scalar rules of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict = {}  # noqa: RUF012  (PyYAML reads this class attribute)


Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$|^0o[0-7]+$|^0x[0-9a-fA-F]+$"), list("-+0123456789")
)
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
    ),
    list("-+.0123456789"),
)


def _int(loader: Any, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, 8 if text.startswith("0o") else 16 if text.startswith("0x") else 10)


Loader.add_constructor("tag:yaml.org,2002:int", _int)


def scalar(text: str) -> Any:
    """The value of one override, `0.1` or `[1, 2]`; text that is no YAML stays text."""
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError:
        return text


def read(text: str, file: str) -> tuple[dict[str, Any], dict[Path, int]]:
    """The document as plain values and the line (1-based) of each key. UsageError with file:line when it is no mapping."""
    loader = Loader(text)
    try:
        node = loader.get_single_node()
        lines: dict[Path, int] = {}
        if node is None:
            return {}, lines
        if not isinstance(node, yaml.MappingNode):
            raise UsageError(f"{file}:{node.start_mark.line + 1}: a recipe is a mapping of keys to values")
        _note_lines(node, (), lines, file)
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UsageError(f"{file}:{mark.line + 1 if mark else 1}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{file}: not valid YAML: {str(error).splitlines()[0]}") from None
    finally:
        loader.dispose()


def _note_lines(node: yaml.MappingNode, at: Path, lines: dict[Path, int], file: str) -> None:
    for key_node, value_node in node.value:
        key = (*at, str(key_node.value))
        if key in lines:
            raise UsageError(
                f"{file}:{key_node.start_mark.line + 1}: {'.'.join(key)}: written twice (first in line {lines[key]})"
            )
        lines[key] = key_node.start_mark.line + 1
        if isinstance(value_node, yaml.MappingNode):
            _note_lines(value_node, key, lines, file)


def write(document: dict[str, Any]) -> str:
    """The document as YAML that `read` reads back to the same values."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
