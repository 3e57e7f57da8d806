"""`shoal data`: what images lie at a path, and packing them."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from shoal.base.errors import UsageError
from shoal.cli.counts import Counts
from shoal.cli.seconds import Seconds

if TYPE_CHECKING:
    from collections import Counter

    from shoal.cli.progress import Progress
    from shoal.data.checking import Check
    from shoal.data.look import Found, Part
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


_FIRST = 10
"""Classes shown one by one; the rest are summed up."""


@click.group("data", short_help="Show what images lie at a path; pack or mend them.")
def command() -> None:
    """Images on the disk, before a training: what they are, what is wrong with them, and the way to mend it.

    \b
    shoal data show imagenet
    shoal data pack imagenet/val imagenet/val-by-class --labels val.txt --classes imagenet/train
    shoal data pack imagenet/train imagenet_train.rec
    shoal data check imagenet_train.rec
    shoal data io imagenet-resnet50 data.path=imagenet
    """


@command.command("show")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, all classes.")
def show(path: Path, as_json: bool) -> None:
    """Say what lies at PATH as Shoal reads it; ends with 1 where something is wrong with it.

    PATH is CIFAR-10 in any form, a folder of class folders (below train and val, or not), a .rec or a folder of two, or
    a .lst. No image is decoded.
    """
    from shoal.data.look import look

    found = look(path)
    click.echo(_json(found) if as_json else _text(found))
    if found.wrong:
        sys.exit(1)


@command.command("pack")
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

    DST ending in .rec: MXNet's RecordIO with .idx, .lst and checksums, the files' bytes as they are (but for --resize).
    Else: a new folder of class
    folders of hard links (copies on another file system), which mends a flat validation folder.

    The forms of label FILES: lines of `name label` or `name,label` as Caffe's val.txt, Kaggle's LOC_val_solution.csv,
    ILSVRC's validation_ground_truth.txt with --synsets, MXNet's .lst. A number is the place of a class among the names
    of TRAINFOLDER's class folders, from 0.
    """
    if quality and not resize:
        raise UsageError(
            "--quality: is of the images that --resize makes smaller; without it all bytes stay as they are"
        )
    from shoal.cli.progress import Progress
    from shoal.data.packed import write
    from shoal.data.packing import arranged, plan
    from shoal.data.recoding import Recoding

    recoding = Recoding(resize, quality or 95) if resize else None
    packings = arranged(plan(src, dst, labels, classes, synsets), recoding, shuffle=shuffle, splits=splits)
    progress, before = Progress(sum(len(one.images) for one in packings)), 0
    handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was begun is removed on the way out
    try:
        for one in packings:
            done = partial(_done, progress, before)
            packed = write(one, on_bad, threads=threads, done=done, told=progress.bad)
            before += len(one.images)
            progress.end()
            click.echo(f"{_shown(one.dst)}: {_packed(packed)}")
    finally:
        signal.signal(signal.SIGTERM, handler)
        progress.end()


def _done(progress: Progress, before: int, count: int) -> None:
    progress.done(before + count)


def _packed(packed: Packed) -> str:
    left_out = f"; {packed.bad:,} left out" if packed.bad else ""
    copied = f"; {packed.copied:,} copied, as they could not be linked" if packed.copied else ""
    return f"{packed.images:,} images of {packed.classes:,} classes{left_out}{copied}"


@command.command("check")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="That decode. [default: one per core]")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, every bad image.")
def check(path: Path, threads: int | None, as_json: bool) -> None:
    """Read and decode every image at PATH; ends with 1 where something is wrong.

    PATH is what `shoal data show` knows. Found are images that cannot be decoded, records that are not as they were
    packed (where `shoal data pack` left sums beside them), images that are there twice: in both splits, or under two
    labels. Forms and sizes are counted. Nothing is changed.
    """
    from shoal.cli.progress import Progress
    from shoal.data.checking import check

    progress = Progress()
    try:
        checked = check(path, threads, begun=progress.begin, done=progress.done, told=progress.bad)
    finally:
        progress.end()
    click.echo(json.dumps(_checked_plain(checked), indent=2, ensure_ascii=False) if as_json else _checked_text(checked))
    if not checked.well:
        sys.exit(1)


@command.command("io")
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--threads", type=Counts("threads"), metavar="N,N…", help="data.threads to try. [default: 1, 2, 4 … cores]"
)
@click.option("--turns", type=click.IntRange(min=1), default=5, show_default=True, metavar="N",
              help="So often all stages are measured, one after another.")  # fmt: skip
@click.option("--turn", "turn_s", type=Seconds(0.01), default="1s", show_default=True, metavar="TIME",
              help="How long each stage has in a turn.")  # fmt: skip
@click.option("--picture", type=click.Path(path_type=Path), metavar="FILE", help="Draw it (PNG).")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, with every turn.")
def input_output(
    recipe: str,
    overrides: tuple[str, ...],
    threads: tuple[int, ...] | None,
    turns: int,
    turn_s: float,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Measure how fast RECIPE's images come, stage by stage, and whether that holds its model back.

    read: the encoded images alone; decoded, cropped: the way up to there; in batches: as the training gets them, made
    by threads ahead of it; on the device: copied there and normalised. The model takes the same batch again and again.
    One worker; nothing is trained, nothing is kept.
    """
    from shoal.base.host import cores
    from shoal.recipe.load import load

    loaded = load(recipe, overrides)
    if picture and (picture.is_dir() or not picture.absolute().parent.is_dir()):
        raise UsageError(f"--picture {picture}: no such folder to write a file in")
    from shoal.train.intake import measure  # imports torch, which takes seconds

    found = measure(loaded.recipe, threads or _up_to(cores()), turns, turn_s)
    if picture:
        found.picture(picture, f"{loaded.name}: from {loaded.recipe.data.name} to batches")
    click.echo(json.dumps(found.plain(), indent=1) if as_json else found.text())


def _up_to(cores: int) -> tuple[int, ...]:
    """1, 2, 4 … and all of them."""
    return tuple(sorted({*(2**power for power in range(cores.bit_length()) if 2**power <= cores), cores}))


def _text(found: Found) -> str:
    from shoal.data.look import NONE
    from shoal.report.tables import table

    blocks = [f"{found.path}: {found.form}"]
    if found.parts:
        rows = [
            (part.name, f"{part.images:,}", f"{len(part.classes.keys() - {NONE}):,}", part.path) for part in found.parts
        ]
        blocks += [table(rows, ("split", "images", "classes", "path")), _class_table(found.parts)]
    blocks += [f"WRONG: {line}" for line in found.wrong]
    if found.mend:
        blocks.append("\n".join(["To mend it:", *(f"  {line}" for line in found.mend)]))
    if found.data:
        ready = "A recipe reads it with:" if not found.wrong else "Once it is mended, a recipe reads it with:"
        blocks.append("\n".join([ready, *(f"  {line}" for line in _yaml(found.data).splitlines())]))
        if found.data["name"] == "folder" and not found.wrong:
            blocks.append(f"To train on it as it is:\n  shoal train own-images data.path={shlex.quote(found.path)}")
    return "\n\n".join(blocks)


def _checked_text(checked: Check) -> str:
    from shoal.report.tables import table

    rows = [
        (one.name, f"{one.images:,}", f"{one.nbytes / 1e6:,.1f} MB", f"{len(one.bad):,}", one.sizes, _forms(one.forms))
        for one in checked.splits
    ]
    blocks = [f"{checked.found.path}: {checked.found.form}"]
    blocks += [table(rows, ("split", "images", "stored", "bad", "pixels", "forms"))] if rows else []
    blocks += [_class_table(checked.found.parts)] if checked.found.parts else []
    blocks += [f"WRONG: {line}" for line in checked.wrong]
    bad = sum(len(one.bad) for one in checked.splits)
    if bad:
        blocks.append(f"WRONG: {bad:,} bad images, told above; data.on_bad=skip trains without them")
    blocks += [f"note: {line}" for line in checked.notes]
    return "\n\n".join([*blocks, "all is well" if checked.well else "something is wrong"])


def _forms(forms: Counter[str]) -> str:
    return "; ".join(f"{count:,} {form}" for form, count in forms.most_common())


def _checked_plain(checked: Check) -> dict[str, Any]:
    splits = [
        {
            "name": one.name,
            "images": one.images,
            "bytes": one.nbytes,
            "pixels": one.sizes,
            "forms": one.forms,
            "bad": one.bad,
        }
        for one in checked.splits
    ]
    found = checked.found
    return {
        "path": found.path,
        "form": found.form,
        "splits": splits,
        "classes": {part.name: part.classes for part in found.parts},
        "wrong": checked.wrong,
        "notes": checked.notes,
        "well": checked.well,
    }


def _class_table(parts: list[Part]) -> str:
    """Images of each class by split: the first classes, and the rest summed up."""
    from shoal.report.tables import table

    names = list(dict.fromkeys(name for part in parts for name in part.classes))
    shown = names if len(names) <= _FIRST + 2 else names[:_FIRST]
    rows: list[tuple[object, ...]] = [(name, *(part.classes.get(name, 0) for part in parts)) for name in shown]
    if rest := names[len(shown) :]:
        sums = (_span([part.classes.get(name, 0) for name in rest]) for part in parts)
        rows.append((f"… {len(rest):,} more", *sums))
    return table(rows, ("class", *(part.name for part in parts)))


def _span(counts: list[int]) -> str:
    least = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    return f"{sum(counts):,} ({least} each)"


def _yaml(data: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump({"data": data}, sort_keys=False, allow_unicode=True).rstrip()


def _json(found: Found) -> str:
    parts = [
        {"name": part.name, "path": part.path, "images": part.images, "classes": part.classes} for part in found.parts
    ]
    told = {"path": found.path, "form": found.form, "splits": parts, "wrong": found.wrong, "mend": found.mend}
    return json.dumps({**told, "data": found.data}, indent=2, ensure_ascii=False)


def _shown(path: Path) -> str:
    from shoal.base.errors import shown_path

    return shown_path(path)
