"""YAML by the 1.2 core rules: what is a number, what stays text, and where every key stands."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.recipe import yaml12


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("5e4", 50000.0),
        (".5", 0.5),
        ("-1.", -1.0),
        ("0o17", 15),
        ("0x1F", 31),
        ("017", 17),  # octal only in YAML 1.1
        ("-3", -3),
        (".inf", math.inf),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("[1, 2e0, a]", [1, 2.0, "a"]),
        ("{a: 1}", {"a": 1}),
    ],
)
def test_values_of_the_core_schema(text: str, value: object):
    found = yaml12.scalar(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text", ["on", "off", "yes", "No", "y", "12:30", "1_000", "0b11", "2026-01-01", "90ep", "1e", "=", "<<", "inf"]
)
def test_what_yaml_1_1_would_change_stays_text(text: str):
    assert yaml12.scalar(text) == text
    assert yaml12.read(f"key: {text}", "r.yaml")[0] == {"key": text}


@pytest.mark.parametrize("text", ["*.jpg", "@home", "[1", "a: b: c", "!x 3", "%d"])
def test_an_override_that_is_no_yaml_is_text(text: str):
    assert yaml12.scalar(text) == text


def test_lines_of_all_keys():
    _, lines = yaml12.read("# a comment\na: 1\nb:\n  c: 2\n  d: [x,\n    y]\n", "r.yaml")
    assert lines == {("a",): 2, ("b",): 3, ("b", "c"): 4, ("b", "d"): 5, ("b", "d", "0"): 5, ("b", "d", "1"): 6}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\nb: 2\na: 3\n", "r.yaml:3: a: written twice (first in line 1)"),
        ("o:\n  lr: 1\n  lr: 2\n", "r.yaml:3: o.lr: written twice (first in line 2)"),
        ("a:\n  - b: 1\n    b: 2\n", "r.yaml:3: a.0.b: written twice (first in line 2)"),
        ("- a\n", "r.yaml:1: a recipe is a mapping of keys to values"),
        (
            "a: 1\n---\nb: 2\n",
            "r.yaml:2: not valid YAML: expected a single document in the stream (begun in line 1), but",
        ),
        ("a: 1\nb: [1\n", "r.yaml:3: not valid YAML: while parsing a flow sequence (begun in line 2), did not find"),
        ("a:\n\tb: 1\n", "indent with spaces, not tabs"),
        ("a: 1\nb: \x07\n", "r.yaml:2: not valid YAML: "),
        ("a: &x\n  b: *x\n", "contains itself"),
        ("a: &x [*x]\n", "contains itself"),
        (
            "a: !!python/object:os.system {}\n",
            "r.yaml:1: not valid YAML: could not determine a constructor for the tag",
        ),
        ("? [a]\n: 1\n", "unhashable key"),
    ],
)
def test_faults_name_the_line(text: str, told: str):
    with pytest.raises(UsageError) as error:
        yaml12.read(text, "r.yaml")
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_file_is_an_empty_recipe():
    assert yaml12.read("# nothing\n", "r.yaml") == ({}, {})


LOOKALIKES = ["1e-3", "+.5", "0o17", "0x1F", "1.", "yes", "null", "~", "12:30", "=", "<<", " a ", "\x85", "\u2028"]
texts = st.sampled_from(LOOKALIKES) | st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(texts, values, max_size=4))
def test_what_is_written_is_read_back(document: dict):
    assert yaml12.read(yaml12.write(document), "r.yaml")[0] == document
