"""Slurm's compact lists: `gpu[03-05,9],cpu1` and `2(x3),1`. Pure."""

from __future__ import annotations

import re

from shoal.base.errors import UsageError

_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand_names(text: str) -> list[str]:
    """`gpu[03-05,9],cpu1` -> gpu03 gpu04 gpu05 gpu9 cpu1."""
    names: list[str] = []
    for word in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        found = [""]
        for piece in re.split(r"(\[[^\]]*\])", word):
            ends = _range(piece[1:-1], text) if piece.startswith("[") else [piece]
            found = [before + end for before in found for end in ends]
        names += found
    return names


def expand_numbers(text: str) -> list[int]:
    """`2(x3),1` -> 2 2 2 1."""
    numbers: list[int] = []
    for word in text.split(","):
        found = _REPEATED.fullmatch(word.strip())
        if found is None:
            raise UsageError(f"Slurm's list of numbers {text!r} cannot be read")
        numbers += [int(found[1])] * int(found[2] or 1)
    return numbers


def _range(inside: str, text: str) -> list[str]:
    found: list[str] = []
    for word in inside.split(","):
        first, dash, last = word.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UsageError(f"Slurm's list of nodes {text!r} cannot be read")
        numbers = range(int(first), int(last or first) + 1)
        found += [f"{number:0{len(first)}d}" for number in numbers]
    return found
