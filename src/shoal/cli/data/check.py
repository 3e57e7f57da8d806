"""`shoal data check`: every image decoded, and what came of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.data.show import class_table

if TYPE_CHECKING:
    from collections import Counter

    from shoal.data.checking import Check


@click.command("check")
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


def _checked_text(checked: Check) -> str:
    from shoal.report.tables import table

    rows = [
        (one.name, f"{one.images:,}", f"{one.nbytes / 1e6:,.1f} MB", f"{len(one.bad):,}", one.sizes, _forms(one.forms))
        for one in checked.splits
    ]
    blocks = [f"{checked.found.path}: {checked.found.form}"]
    blocks += [table(rows, ("split", "images", "stored", "bad", "pixels", "forms"))] if rows else []
    blocks += [class_table(checked.found.parts)] if checked.found.parts else []
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
