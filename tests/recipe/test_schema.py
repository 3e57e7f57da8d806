"""The JSON Schema of recipes agrees with what `load` accepts and refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.recipe import yaml12
from shoal.recipe.find import FILES, built_in
from shoal.recipe.load import load, parse, plain
from shoal.recipe.part import SEAMS, names
from shoal.recipe.recipe import Recipe
from shoal.recipe.schema import schema

jsonschema = pytest.importorskip("jsonschema")

GOOD = {"data": "digits", "model": "digits-cnn", "optim": {"name": "sgd", "lr": 0.1}, "batch": 64, "length": "10ep"}


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema.Draft202012Validator.check_schema(schema())
    return jsonschema.Draft202012Validator(schema())


@pytest.mark.parametrize("name", built_in())
def test_built_in_recipes_are_valid_as_written_and_resolved(name: str, validator: Any):
    written = Path(FILES / f"{name}.yaml").read_text()
    validator.validate(yaml12.read(written, name)[0])
    validator.validate(plain(load(name).recipe))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"task": {"smoothing": 0.1}},  # the default part needs no name
        {"strategy": "single"},
        {"ema": {"half_life": "0.5ep"}},
        {"ema": None},
        {"schedule": {"name": "multistep", "at": ["3ep", "5ep"]}},
        {"model": {"name": "resnet18", "pretrained": True, "options": {"anything": 1}}},
        {"shards": "auto"},
    ],
)
def test_valid_to_both(change: dict, validator: Any):
    document = {**GOOD, **change}
    validator.validate(document)
    parse(yaml12.write(document), "good")


@pytest.mark.parametrize(
    "change",
    [
        {"lenght": "10ep"},
        {"length": 10},
        {"length": "10 days"},
        {"batch": 0},
        {"batch": "64"},
        {"optim": "sgd"},  # lr has no default
        {"optim": {"name": "sgd"}},
        {"optim": {"lr": 0.1}},
        {"optim": {"name": "adam", "lr": 0.1}},
        {"optim": {"name": "sgd", "lr": -1}},
        {"optim": {"name": "sgd", "lr": 0.1, "beta1": 0.9}},
        {"data": {"name": "digits", "augment": {"pad": "wide"}}},
        {"data": None},
        {"norm": "batch"},
        {"seed": 2**32},
        {"drop_last": "yes"},
        {"schedule": {"name": "multistep", "at": [3]}},
        {"model": {"drop": 0.1}},
        {"ema": {"decay": 0.999}},
    ],
)
def test_faulty_to_both(change: dict, validator: Any):
    document = {**GOOD, **change}
    assert not validator.is_valid(document)
    with pytest.raises(Exception, match="bad"):
        parse(yaml12.write(document), "bad")


def test_editors_are_told_all_keys_parts_and_their_help():
    told = schema()
    assert list(told["properties"]) == list(Recipe.__struct_fields__)
    assert all(held.get("description") for held in told["properties"].values())
    for key, seam in {"data": "sources", "optim": "optims", "schedule": "schedules"}.items():
        assert seam in SEAMS
        titles = [form["title"] for form in told["properties"][key]["oneOf"] if "title" in form]
        assert titles == list(names(seam))
