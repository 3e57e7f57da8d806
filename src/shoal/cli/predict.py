"""`shoal predict`: what is on images, by a trained model."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.base.errors import DONE, FAILED, ShoalError, UsageError, shown_path

if TYPE_CHECKING:
    from shoal.inference.classifier import Seen

_WIDEST = 60
"""Characters up to which names of files and classes are padded, so that columns stand below each other."""


@click.command("predict", short_help="Say what is on images: names and probabilities.")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("images", nargs=-1, required=True, metavar="IMAGES|FOLDER...", type=click.Path(path_type=Path))
@click.option("--top", type=click.IntRange(min=1), default=3, show_default=True, help="How many classes of each image.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per image and line.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.csv", help="Write a CSV table, one image a row.")
@click.option("--batch", type=click.IntRange(min=1), default=64, show_default=True, help="Images computed together.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads that decode images. [default: one per core]")
@click.option("--raw", is_flag=True, help="Use the weights themselves where the checkpoint has a moving average.")
def command(
    checkpoint: Path,
    images: tuple[Path, ...],
    top: int,
    as_json: bool,
    out: Path | None,
    batch: int,
    threads: int | None,
    raw: bool,
) -> int:
    """Say what CHECKPOINT (a checkpoint's folder, or a run's, whose best is taken) sees on image files, and on all
    images below FOLDERs.

    Images of any size are resized and cut as in validation. One that cannot be read is told and skipped; then the
    exit code is 1, once all others are done.
    """
    from shoal.base.run import resolve

    resolve(checkpoint)  # wrong paths are told before torch is imported
    from shoal.data.listing import files_at

    files = files_at(images)
    if out is not None and out.is_dir():
        raise UsageError(f"--out {shown_path(out)}: is a folder; name the table's file")
    from shoal.inference.classifier import load

    classifier = load(checkpoint, raw=raw)
    count, bad, began = 0, 0, time.perf_counter()

    def seen() -> Iterator[tuple[str, Seen]]:
        nonlocal count, bad
        for path, one in zip(files, classifier.look(files, top=top, batch=batch, threads=threads), strict=True):
            count += 1
            if one.fault is not None:
                bad += 1
                click.echo(f"BAD: {shown_path(path)} {one.fault}; skipped", err=True)
            yield shown_path(path), one

    if out is not None:
        _write(out, seen(), len(files), min(top, len(classifier.classes)))
    elif as_json:
        for path, one in seen():
            click.echo(_json(path, one))
    else:
        wide = min(max(len(shown_path(path)) for path in files), _WIDEST)
        name = min(max(map(len, classifier.classes)), _WIDEST)
        for path, one in seen():
            if one.fault is None:
                guesses = "  ".join(f"{guess.name:<{name}} {guess.probability:6.1%}" for guess in one.guesses)
                click.echo(f"{path:<{wide}}  {guesses}")
    took_s = time.perf_counter() - began
    told = f"{count:,} images in {took_s:.1f} s ({count / took_s:,.1f} images/s)"
    told += f"; {bad:,} could not be read" if bad else ""
    click.echo(f"{out}: {told}" if out else told, err=True)
    return FAILED if bad else DONE


def _json(path: str, one: Seen) -> str:
    if one.fault is not None:
        return json.dumps({"image": path, "error": str(one.fault)}, ensure_ascii=False)
    guesses = [{"class": guess.name, "probability": guess.probability} for guess in one.guesses]
    return json.dumps({"image": path, "predictions": guesses}, ensure_ascii=False)


def _write(out: Path, seen: Iterator[tuple[str, Seen]], count: int, top: int) -> None:
    """The table, whole or not at all."""
    from shoal.base.files import write_whole
    from shoal.cli.progress import Progress

    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    columns = [column for rank in range(1, top + 1) for column in (f"class_{rank}", f"probability_{rank}")]
    table.writerow(["image", *columns, "error"])
    progress = Progress(count)
    for number, (path, one) in enumerate(seen, 1):
        progress.done(number)
        cells = [cell for guess in one.guesses for cell in (guess.name, f"{guess.probability:.6f}")]
        table.writerow([path, *cells, *[""] * (2 * top - len(cells)), "" if one.fault is None else str(one.fault)])
    progress.end()
    try:
        write_whole(out, text.getvalue())
    except OSError as error:
        raise ShoalError(f"--out {shown_path(out)}: cannot be written ({error.strerror})") from None
