"""Shares: what a training's time went into, and which of it held it back."""

from __future__ import annotations

from typing import NamedTuple

from shoal.report.reading import Reading

NOTABLE = 0.1
"""Share from which on something beside computing is worth a word."""


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


def shares(reading: Reading) -> list[Share]:
    """What the time so far went into; empty before anything was reported. Starting is known only where a training was
    never resumed."""
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
        Share("waiting for images", waited, of,
              "; more threads that decode (data.threads) or packed images (shoal data pack) would make it less"),
        Share("validating", validated, of, "; a longer eval_every would make it less"),
        Share("saving checkpoints", saved, of, "; a longer save_every or a faster disk would make it less"),
        Share("starting and ending", other, of, ", which a longer training would hardly notice"),
    ]  # fmt: skip


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
