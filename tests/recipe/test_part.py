"""Parts: found by listing their folders, frozen, and explained by the docstrings under their fields."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.recipe.check import describe, fields
from shoal.recipe.part import SEAMS, Options, Part, field_help, kind, kinds, names
from shoal.recipe.recipe import Recipe

EVERY = [(seam, name) for seam in SEAMS for name in names(seam)]


@pytest.mark.parametrize("seam", SEAMS)
def test_every_seam_has_parts(seam: str):
    assert names(seam) == tuple(sorted(names(seam)))
    assert set(kinds(seam)) == set(names(seam)) != set()
    assert kind(seam, "no-such-part") is None


@pytest.mark.parametrize(("seam", "name"), EVERY)
def test_a_part_says_what_it_is(seam: str, name: str):
    part = kinds(seam)[name]
    assert issubclass(part, Part)
    assert seam == part.SEAM
    assert fields(part)["name"], "called as its file"
    assert next(f.default for f in msgspec.structs.fields(part) if f.name == "name") == name
    assert part.__doc__ and part.__doc__.strip().partition("\n")[0]


@pytest.mark.parametrize("options", [Recipe, *(kinds(seam)[name] for seam, name in EVERY)])
def test_every_option_has_its_help_and_a_type_in_plain_words(options: type[Options]):
    helped = field_help(options)
    for key, wanted in fields(options).items():
        assert key == "name" or helped.get(key), f"{options.__name__}.{key} has no docstring under it"
        told = describe(wanted)
        assert told and "typing" not in told and "<class" not in told


def test_help_of_a_base_class_is_found_and_cleaned():
    assert field_help(kinds("optims")["sgd"])["lr"].startswith("Peak learning rate")
    assert "\n    " not in field_help(Recipe)["shards"]


def test_options_are_frozen():
    sgd: Any = kinds("optims")["sgd"]
    part = sgd(lr=0.1)
    with pytest.raises(AttributeError):
        part.lr = 1.0
