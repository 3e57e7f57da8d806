"""Terminal: what the page says of a run, as text."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator

from shoal.base.run import Run
from shoal.report.confusion import Confusion
from shoal.report.reading import Reading
from shoal.report.shares import shares
from shoal.report.story import percent, story
from shoal.report.tables import seconds, summary, table

MOST = 8
"""Classes, and pairs of them, that are shown."""


def told(run: Run) -> str:
    """Story, summary, where the time went, the hardest classes and the pairs confused most often.

    UsageError where there is no run, ShoalError where its metrics are damaged.
    """
    reading = Reading.of(run)
    return "\n\n".join(_parts(reading))


def _parts(reading: Reading) -> Iterator[str]:
    yield textwrap.fill(" ".join(story(reading)), max(40, min(shutil.get_terminal_size((100, 24)).columns, 100)))
    if reading.start is None:
        return
    yield summary(reading.run)
    if found := shares(reading):
        yield table([(share.name, seconds(share.seconds), percent(share.share)) for share in found],
                    ("where the time went", "time", "share"))  # fmt: skip
    predictions, missing = reading.judged
    if predictions is None:
        yield f"Classes: not known ({missing})."
        return
    confusion = Confusion.of(predictions)
    rows = confusion.rows()
    hardest = "class" if len(rows) <= MOST else f"hardest of {len(rows):,} classes"
    yield table([(row.name, percent(row.top1), percent(row.top5), f"{row.count:,}") for row in rows[:MOST]],
                (hardest, "top-1", "top-5", "images"))  # fmt: skip
    if pairs := confusion.pairs(MOST):
        yield table([(pair.label, pair.guess, f"{pair.count:,}", f"{pair.of:,}") for pair in pairs],
                    ("class", "taken for", "images", "of"))  # fmt: skip
