"""Durations with units, as recipes write them: `90ep`, `5000st`, `1.2Mim`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

FORM = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*(ep|st|im|kim|Mim)\s*$")
"""What a duration looks like."""
_IMAGES = {"im": 1, "kim": 1_000, "Mim": 1_000_000}
HELP = "a duration is a number with a unit: 90ep (epochs), 5000st (steps), 50kim or 1.2Mim (images)"


@dataclass(frozen=True)
class Span:
    """How long one epoch is; what turns a Duration into steps or images."""

    images_per_epoch: int
    batch: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.images_per_epoch // self.batch)

    def images_before(self, step: int) -> int:
        """Images seen before step `step` (0-based), counting the short last batch of each epoch exactly."""
        epoch, position = divmod(step, self.steps_per_epoch)
        return epoch * self.images_per_epoch + min(position * self.batch, self.images_per_epoch)


@dataclass(frozen=True)
class Duration:
    """A length of training. `amount` is exact (a Fraction), so that 0.1ep ten times is one epoch."""

    amount: Fraction
    unit: str
    """ep, st or im."""

    @classmethod
    def parse(cls, text: object) -> Duration:
        """Reads `90ep`, `5000st`, `50kim`, `1.2Mim`, `600im`; ValueError says what would be right."""
        if isinstance(text, Duration):
            return text
        match = FORM.match(text) if isinstance(text, str) else None
        if match is None:
            bare = isinstance(text, (int, float)) and not isinstance(text, bool)
            raise ValueError(f"{text} has no unit; {HELP}" if bare else f"{text!r} is no duration; {HELP}")
        amount, unit = Fraction(match[1]), match[2]
        return cls(amount * _IMAGES[unit], "im") if unit in _IMAGES else cls(amount, unit)

    def __str__(self) -> str:
        return f"{_decimal(self.amount)}{self.unit}"

    def steps(self, span: Span) -> int:
        """The number of steps after which at least this long has been trained."""
        if self.unit == "st":
            return -(-self.amount.numerator // self.amount.denominator)
        images = self.amount * (span.images_per_epoch if self.unit == "ep" else 1)
        epochs, rest = divmod(images, span.images_per_epoch)
        return int(epochs) * span.steps_per_epoch + -(-rest.numerator // (rest.denominator * span.batch))

    def images(self, span: Span) -> Fraction:
        """The same length in images, the unit schedules count in."""
        if self.unit == "im":
            return self.amount
        if self.unit == "ep":
            return self.amount * span.images_per_epoch
        whole = int(self.amount)
        return Fraction(span.images_before(whole)) + (self.amount - whole) * span.batch

    def due(self, step: int, span: Span) -> bool:
        """Whether a whole multiple of this duration was passed by step `step` (0-based), the one just done."""
        if self.amount == 0:
            return False
        if self.unit == "st":
            return int(Fraction(step + 1) / self.amount) > int(Fraction(step) / self.amount)
        period = self.images(span)
        return int(span.images_before(step + 1) / period) > int(span.images_before(step) / period)


def _decimal(amount: Fraction) -> str:
    """All digits, without an exponent, so that `parse` reads the very same amount back; 1/3 is cut at 30 places."""
    # A decimal that ends does so within log2(denominator) places.
    places = next((n for n in range(amount.denominator.bit_length()) if 10**n % amount.denominator == 0), 30)
    whole, rest = divmod(int(amount * 10**places), 10**places)
    return f"{whole}.{rest:0{places}}" if rest else str(whole)
