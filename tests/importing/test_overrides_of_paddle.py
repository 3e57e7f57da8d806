"""`-o a.b.0.c=value`: set without eval; what is not there is refused; garbage ends in one clear error."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.importing.paddle.overrides import apply

HELD = {"Global": {"epochs": 120}, "Arch": {"name": "ResNet50"}, "Loss": {"Train": [{"CELoss": {"weight": 1.0}}]}}


def after(override: str) -> dict:
    values = copy.deepcopy(HELD)
    apply(values, override)
    return values


@pytest.mark.parametrize(
    ("override", "where", "value"),
    [
        ("Global.epochs=3", ("Global", "epochs"), 3),
        ("Arch.name=ResNet18", ("Arch", "name"), "ResNet18"),
        ("Loss.Train.0.CELoss.weight=5e-1", ("Loss", "Train", 0, "CELoss", "weight"), 0.5),
        ("+Global.seed=7", ("Global", "seed"), 7),
        ("+AMP.level=O2", ("AMP", "level"), "O2"),
        ("Arch.name=a=b", ("Arch", "name"), "a=b"),
        ("Arch.name=__import__('os').getcwd()", ("Arch", "name"), "__import__('os').getcwd()"),
    ],
)
def test_a_value_is_yaml_and_nothing_is_evaluated(override: str, where: tuple, value: object):
    held = after(override)
    for step in where:
        held = held[step]
    assert held == value


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("Global.epoch=3", "no key Global.epoch in the file; did you mean 'epochs'?"),
        ("Globl.epochs=3", "no key Globl in the file; did you mean 'Global'?"),
        ("Loss.Train.4.CELoss.weight=1", "a list of 1; its places are 0 to 0"),
        ("Loss.Train.first.CELoss.weight=1", "a list of 1; its places are 0 to 0"),
        ("Global.epochs.more=3", "Global.epochs is 120, with nothing below it"),
        ("Global.epochs", "expected KEY=VALUE"),
        ("=3", "expected KEY=VALUE"),
    ],
)
def test_a_slip_of_the_finger_is_told(override: str, told: str):
    with pytest.raises(UsageError, match="-o ") as error:
        after(override)
    assert told in str(error.value)


@given(st.text(max_size=60))
def test_any_text_is_taken_or_refused_in_one_line(text: str):
    try:
        after(text)
    except UsageError as error:
        assert str(error).startswith("-o")


@given(
    st.lists(st.sampled_from(["Global", "epochs", "Loss", "Train", "0", "CELoss", "x"]), min_size=1, max_size=6),
    st.text(),
)
def test_paths_that_nearly_are(path: list[str], value: str):
    for plus in ("", "+"):
        try:
            after(f"{plus}{'.'.join(path)}={value}")
        except UsageError as error:
            assert str(error).startswith("-o")
