"""Slurm's compact lists."""

from __future__ import annotations

import pytest

from shoal.base.errors import UsageError
from shoal.launch.nodelist import expand_names, expand_numbers


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("host1", "host1"),
        ("gpu[03-05,9],cpu1", "gpu03 gpu04 gpu05 gpu9 cpu1"),
        ("a[1-2]b[3,5]", "a1b3 a1b5 a2b3 a2b5"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("", ""),
    ],
)
def test_names(text: str, names: str) -> None:
    assert expand_names(text) == names.split()


def test_numbers() -> None:
    assert expand_numbers("2(x3),1") == [2, 2, 2, 1]


def test_what_is_no_list_is_told() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        expand_names("n[a-b]")
    with pytest.raises(UsageError, match="cannot be read"):
        expand_numbers("many")
