"""Story: what became of a training, in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from shoal.base.errors import ShoalError
from shoal.report.confusion import Confusion
from shoal.report.reading import Reading
from shoal.report.shares import brake, shares
from shoal.report.spent import Spent
from shoal.report.tables import last, seconds
from shoal.report.why import Why

GAP = 0.05
"""By how much training images must be named better than new ones to be worth a word."""
RISE = 0.002
"""By how much the last validation must be better than the one before it."""


def story(reading: Reading) -> list[str]:
    """Sentences, the most important first."""
    return [*_outcome(reading), *_pace(reading), *_fit(reading), *_mistakes(reading)]


def percent(share: float) -> str:
    """With as many digits as tell it from 0 and 100 %."""
    if 0 < share < 0.0005 or 0.9995 <= share < 1:
        return (
            f"{100 * share:.2f} %" if 0.00005 <= share < 0.99995 else "under 0.01 %" if share < 0.5 else "over 99.99 %"
        )
    return f"{100 * share:.1f} %" if 0 < share < 1 else f"{100 * share:.0f} %"


def interval(correct: int, count: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927): what other images of the same kind might have given."""
    if not count:
        return 0.0, 1.0
    z, share = 1.96, correct / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def compared(readings: Sequence[Reading]) -> list[str]:
    """What several runs say side by side."""
    scored = [(reading, reading.best) for reading in readings if reading.best is not None]
    if not scored:
        return ["None of these runs has been validated yet."]
    ranked = sorted(scored, key=lambda pair: -pair[1]["top1"])
    (first, top), rest = ranked[0], ranked[1:]
    told = [
        f"The best is {first.name}: {percent(top['top1'])} of {top['count']:,} validation images named correctly"
        + "".join(f"; {reading.name}: {percent(val['top1'])}" for reading, val in rest)
        + "."
    ]
    if rest:
        told += _paired(first, rest[0][0])
    return told


def _paired(first: Reading, second: Reading) -> Iterator[str]:
    """Whether the same images tell the two apart (McNemar's test with Yates's correction)."""
    one, other = first.judged[0], second.judged[0]
    if one is None or other is None or one.classes != other.classes or (one.labels.tobytes() != other.labels.tobytes()):
        return
    ahead, behind = int((one.correct & ~other.correct).sum()), int((other.correct & ~one.correct).sum())
    apart = ahead + behind > 0 and (abs(ahead - behind) - 1) / math.sqrt(ahead + behind) > 1.96
    chance = "more than" if apart else "no more than"
    yield (
        f"{first.name} is right on {ahead:,} images where {second.name} is wrong, the other way round it is "
        f"{behind:,}: {chance} chance would give."
    )


def _outcome(reading: Reading) -> Iterator[str]:
    start = reading.start
    if start is None:
        if reading.state == "running":
            yield "This training has just been started and has reported nothing yet."
        else:
            yield "This training ended before its first step." + _said(reading)
        return
    workers = f"{start['num_ranks']} worker{'s' * (start['num_ranks'] != 1)}"
    what = f"{start['model']} ({start['parameters']:,} parameters)"
    on = f"{start['images_per_epoch']:,} images"
    far = f"{reading.epochs:.4g} of {start['epochs']:.4g} epochs"
    end = reading.end
    if end is not None:
        took = seconds((end["trained_s"] or 0) + (end["paused_s"] or 0))
        epochs = f"{reading.epochs:.4g} epochs" if reading.state == "done" else far
        why = {"desired_accuracy": " It stopped early, having reached the desired accuracy.",
               "signal": " It was stopped by a signal, and can go on."}.get(end["reason"], "")  # fmt: skip
        yield f"{what} was trained on {on} for {epochs} in {took} by {workers}.{why}"
    elif reading.owner is not None:
        yield f"{what} is being trained on {on} by {workers}: {far} so far."
    else:
        yield (
            f"{what} was being trained on {on} by {workers}; the training broke off after {far}, and nobody here is "
            f"working on it.{_said(reading)}"
        )
    if "teacher" in start:
        yield f"It learnt from a teacher, {start['teacher']['name']} of {start['teacher']['from']}."
    val = reading.best
    if val is None:
        yield "It has not been validated yet."
        return
    low, high = interval(val["correct1"], val["count"])
    yield (
        f"At its best it names {percent(val['top1'])} of {val['count']:,} validation images correctly "
        f"(95 % interval {percent(low)} to {percent(high)}), and has the right class among its first five guesses for "
        f"{percent(val['top5'])}."
    )


def _said(reading: Reading) -> str:
    return f" Its log ends: {reading.last_words}" if reading.last_words else ""


def _pace(reading: Reading) -> Iterator[str]:
    found = shares(reading)
    if not found:
        return
    told = reading.end or last(reading.events, "train")
    speed = f" at {told['images_per_s']:,.0f} images/s" if told and told["images_per_s"] else ""
    held, why = brake(found), _why(reading)
    free = why is None or not (why.brakes or why.spent.hidden)
    if held is not None:
        most = "Most" if held.share > 0.5 else "Much"
        yield f"{most} of its time, {percent(held.share)}, went into {held.name}{held.remedy}."
        if speed:
            yield f"It trained{speed}."
    else:
        went = f"{percent(found[0].share)} of its time went into {found[0].name}{speed}."
        yield (
            f"Nothing held it back but the arithmetic: {went} More or faster workers would make it shorter."
            if free
            else went
        )
    if why is not None and why.brakes:
        yield f"What held it back most, its start aside: {why.verdict}."


def _why(reading: Reading) -> Why | None:
    try:
        return Why.of(Spent.of_events(reading.events, reading.run))
    except ShoalError:
        return None


def _fit(reading: Reading) -> Iterator[str]:
    vals = [event for event in reading.events if event["event"] == "val" and event["top1"] is not None]
    if not vals:
        return
    epoch, val = last(reading.events, "epoch"), vals[-1]
    if epoch is not None and epoch["top1"] is not None and epoch["top1"] - val["top1"] > GAP:
        yield (
            f"It names images it was trained on much better ({percent(epoch['top1'])} in the last epoch) than new ones "
            f"({percent(val['top1'])}): more images, stronger augmentation or a smaller model would close the gap."
        )
    rising = len(vals) > 2 and val is reading.best and val["top1"] - vals[-2]["top1"] > RISE
    if rising and reading.state == "done":
        yield "Its last validation was its best, and it was still getting better: a longer training may help."


def _mistakes(reading: Reading) -> Iterator[str]:
    predictions, _ = reading.judged
    if predictions is None or reading.start is None:
        return
    confusion = Confusion.of(predictions)
    rows, pairs = confusion.rows(), confusion.pairs(1)
    if len(rows) < 2:
        return
    worst, easiest = rows[0], rows[-1]
    if worst.top1 == easiest.top1:
        yield f"It names all classes equally well ({percent(worst.top1)})."
        return
    text = (
        f"The hardest class is {worst.name} ({worst.correct1:,} of {worst.count:,} right), "
        f"the easiest {easiest.name} ({easiest.correct1:,} of {easiest.count:,})"
    )
    if pairs and pairs[0].count > 1:
        pair = pairs[0]
        text += f"; most often it took {pair.label} for {pair.guess} ({pair.count:,} of {pair.of:,})"
    yield f"{text}."
