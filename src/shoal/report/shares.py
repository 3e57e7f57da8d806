"""Shares: what a training's time went into, and which of it held it back."""

from __future__ import annotations

from typing import NamedTuple

from shoal.base.errors import ShoalError
from shoal.report.reading import Reading
from shoal.report.spent import PARTS, Spent

NOTABLE = 0.1
"""Share from which on something beside computing is worth a word."""
_MORE_IMAGES = "; more threads that decode (data.threads) or packed images (shoal data pack) would make it less"
_LESS_VALIDATION = "; a longer eval_every would make it less"
_LESS_SAVING = "; a longer save_every or a faster disk would make it less"
_LONGER = ", which a longer training would hardly notice"


class Share(NamedTuple):
    """Part of a training's time."""

    name: str
    seconds: float
    of: float
    """Seconds in all."""
    remedy: str = ""
    """The end of a sentence about it, where it is too much; empty for computing itself."""

    @property
    def share(self) -> float:
        return self.seconds / self.of if self.of > 0 else 0.0


_WORDS = {
    "compute": ("computing", ""),
    "exchange": ("exchanging gradients", "; a faster link, larger batches or another strategy would make it less"),
    "waiting": ("waiting for other workers", "; `shoal why` names the one that comes last"),
    "input": ("waiting for images", _MORE_IMAGES),
    "transfer": ("moving images to the device", "; smaller images or a faster bus would make it less"),
    "update": ("updating weights", "; larger batches would make it less"),
    "validation": ("validating", _LESS_VALIDATION),
    "checkpoint": ("saving checkpoints", _LESS_SAVING),
    "other": ("logging, ending and the rest", "; a longer log_every would make it less"),
    "start-up": ("starting", _LONGER),
}
"""Part of `Spent` -> its name and remedy."""


def shares(reading: Reading) -> list[Share]:
    """What the time of the last sitting went into; empty before anything was reported."""
    try:
        spent = Spent.of_events(reading.events, reading.run)
    except ShoalError:  # it has not come so far as to tell
        return _roughly(reading)
    assert set(_WORDS) == set(PARTS)
    words = _WORDS | ({"compute": ("computing and exchanging gradients", "")} if spent.hidden else {})
    return [Share(name, spent.parts[part], spent.total_s, remedy) for part, (name, remedy) in words.items()]


def _roughly(reading: Reading) -> list[Share]:
    """By the figures of every log line. Starting is known only where a training was never resumed."""
    trains = [event for event in reading.events if event["event"] == "train"]
    told = reading.end or (trains[-1] if trains else None)
    if told is None or not told["trained_s"]:
        return []
    trained = told["trained_s"]
    waited = trained * (told["wait_share"] or 0.0) if reading.end else _waited(trains)
    validated, saved = (
        sum(event["seconds"] or 0.0 for event in reading.events if event["event"] == kind) for kind in ("val", "save")
    )
    end = reading.end
    other = max(0.0, end["program_s"] - trained - validated - saved) if end and not reading.resumed else 0.0
    of = trained + validated + saved + other
    return [
        Share("computing and exchanging gradients", trained - waited, of),
        Share("waiting for images", waited, of, _MORE_IMAGES),
        Share("validating", validated, of, _LESS_VALIDATION),
        Share("saving checkpoints", saved, of, _LESS_SAVING),
        Share("starting and ending", other, of, _LONGER),
    ]


def _waited(trains: list) -> float:
    """Of a training under way: by its intervals."""
    waited = before = 0.0
    for event in trains:
        waited += max(0.0, event["trained_s"] - before) * (event["wait_share"] or 0.0)
        before = event["trained_s"]
    return waited


def brake(found: list[Share]) -> Share | None:
    """The largest part beside computing, if it is worth a word."""
    rest = [share for share in found if share.remedy and share.share >= NOTABLE]
    return max(rest, key=lambda share: share.seconds, default=None)
