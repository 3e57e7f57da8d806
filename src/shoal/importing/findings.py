"""Findings: what becomes of an old job's settings that are no key of a recipe, each with its place and the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Finding(NamedTuple):
    """One setting: where it stands (`conf.yaml:12`, or `command line`), what it is, and why it is told."""

    where: str
    what: str
    why: str
    unknown: bool = False
    """Whether it is wrong only in that nobody knows it."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: {self.why}"


@dataclass
class Findings:
    """Three kinds: `left` out (the training goes on without), `lacking` (it cannot be trained here), `wrong`."""

    left: list[Finding] = field(default_factory=list)
    lacking: list[Finding] = field(default_factory=list)
    wrong: list[Finding] = field(default_factory=list)

    def leave(self, where: str, what: str, why: str) -> None:
        """The recipe does without it, and trains something else in so far."""
        self.left.append(Finding(where, what, why))

    def lack(self, where: str, what: str, why: str) -> None:
        """Without it this would be no import at all: no recipe is written."""
        self.lacking.append(Finding(where, what, why))

    def fault(self, where: str, what: str, why: str) -> None:
        """The old job itself says something that cannot be."""
        self.wrong.append(Finding(where, what, why))

    def strange(self, where: str, what: str, why: str) -> None:
        """It says something that nobody knows: wrong, unless it is to be skipped."""
        self.wrong.append(Finding(where, what, why, unknown=True))

    def skip_unknown(self) -> None:
        """What nobody knows is left out; what cannot be stays wrong."""
        self.left += [one for one in self.wrong if one.unknown]
        self.wrong = [one for one in self.wrong if not one.unknown]
