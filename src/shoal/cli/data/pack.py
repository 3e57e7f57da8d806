"""`shoal data pack`: images as one file, or as class folders."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from shoal.base.errors import UsageError, shown_path

if TYPE_CHECKING:
    from shoal.data.packed import Packed


class Shares(click.ParamType):
    """`0.9,0.1`."""

    name = "S,S…"

    def convert(self, value, param, ctx):
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(word) for word in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r}: expected shares as in 0.9,0.1", param, ctx)


@click.command("pack")
@click.argument("src", type=click.Path(path_type=Path))
@click.argument("dst", type=click.Path(path_type=Path))
@click.option("--labels", type=click.Path(path_type=Path), metavar="FILE", help="Which image is of which class.")
@click.option(
    "--classes", type=click.Path(path_type=Path), metavar="TRAINFOLDER", help="Its class folders are the classes."
)
@click.option(
    "--synsets", type=click.Path(path_type=Path), metavar="FILE", help="ILSVRC's numbers of classes (map_clsloc.txt)."
)
@click.option(
    "--on-bad",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="At images that cannot be decoded: write nothing, or leave them out.",
)
@click.option("--resize", type=click.IntRange(min=1), metavar="PX",
              help="Make larger images smaller: their shorter side to so many pixels, as new JPEGs.")  # fmt: skip
@click.option("--quality", type=click.IntRange(1, 100), metavar="1-100", help="Of those JPEGs. [default: 95]")
@click.option("--shuffle", is_flag=True, help="Mix the classes (always in the same way), for readers in a row.")
@click.option("--splits", type=Shares(), default=(), metavar="S,S[,S]",
              help="Deal the images out to DST_train.rec, DST_val.rec (and DST_test.rec), as in 0.9,0.1.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="That decode. [default: one per core]")
def pack(
    src: Path,
    dst: Path,
    labels: Path | None,
    classes: Path | None,
    synsets: Path | None,
    on_bad: Literal["stop", "skip"],
    resize: int | None,
    quality: int | None,
    shuffle: bool,
    splits: tuple[float, ...],
    threads: int | None,
) -> None:
    """Pack the images of the folder SRC as DST; SRC is never changed.

    DST ending in .rec: MXNet's RecordIO with .idx, .lst and checksums, the files' bytes as they are (but for --resize);
    interrupted, the same command goes on. Else: a new folder of class folders of hard links (copies on another file
    system), which mends a flat validation folder.

    The forms of label FILES: lines of `name label` or `name,label` as Caffe's val.txt, Kaggle's LOC_val_solution.csv,
    ILSVRC's validation_ground_truth.txt with --synsets, MXNet's .lst. A number is the place of a class among the names
    of TRAINFOLDER's class folders, from 0.
    """
    if quality and not resize:
        raise UsageError(
            "--quality: is of the images that --resize makes smaller; without it all bytes stay as they are"
        )
    from shoal.cli.progress import Progress
    from shoal.data.packed import aside_of, write
    from shoal.data.packing import arranged, plan
    from shoal.data.recoding import Recoding

    recoding = Recoding(resize, quality or 95) if resize else None
    packings = arranged(plan(src, dst, labels, classes, synsets), recoding, shuffle=shuffle, splits=splits)
    progress = Progress(sum(len(one.images) for one in packings))
    handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was begun is put in order on the way out
    try:
        packed = write(packings, on_bad, threads=threads, kept=progress.kept, done=progress.done, told=progress.bad)
    except (KeyboardInterrupt, SystemExit):
        progress.end()
        if (aside := aside_of(packings)).exists():
            told = f"stopped; the same command goes on from here (with {shown_path(aside)}, which may also be removed)"
            click.echo(told, err=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)
        progress.end()
    for packing, came in zip(packings, packed, strict=True):
        click.echo(f"{shown_path(packing.dst)}: {_came(came)}")


def _came(packed: Packed) -> str:
    left_out = f"; {packed.bad:,} left out" if packed.bad else ""
    copied = f"; {packed.copied:,} copied, as they could not be linked" if packed.copied else ""
    return f"{packed.images:,} images of {packed.classes:,} classes{left_out}{copied}"
