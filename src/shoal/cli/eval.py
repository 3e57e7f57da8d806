"""`shoal eval`: validates a checkpoint, alone or shared out among workers."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.base.errors import DONE, ShoalError, UsageError

if TYPE_CHECKING:
    from shoal.base.world import World

_ALL, _WORST = 12, 10
"""Classes up to which all are shown; of more, so many that do worst."""


@click.command("eval", short_help="Validate a checkpoint: the same figures as in training.")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("-n", "--workers", type=click.IntRange(min=1), metavar="N",
              help="Workers on this host that share the images. [default: 1]")  # fmt: skip
@click.option("--tta", type=click.Choice(["flip"]), help="flip: the mean of each image and its mirror image.")
@click.option("--raw", is_flag=True, help="Use the weights themselves where the checkpoint has a moving average.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, all classes, instead of tables.")
@click.option("--result", type=click.Path(path_type=Path), hidden=True, help="Where worker 0 writes what it found.")
def command(
    checkpoint: Path,
    overrides: tuple[str, ...],
    workers: int | None,
    tta: str | None,
    raw: bool,
    as_json: bool,
    result: Path | None,
) -> int:
    """Validate CHECKPOINT (a checkpoint's folder, or a run's, whose best is taken) on its recipe's validation images.

    Recipe keys can be changed, as in data.val=FOLDER for other images of the same classes. Any number of workers
    counts the same; inside a world of torchrun, mpirun or srun it is a worker of it.
    """
    from shoal.base.run import resolve
    from shoal.base.world import World

    world = World.from_env(os.environ)
    if world is not None and workers is not None:
        raise UsageError(f"this is already a worker of {world.launcher} ({world.num_ranks} in all); leave out -n")
    path = resolve(checkpoint)
    _check(path, overrides)
    if (workers or 1) > 1:
        options = ["--raw"] * raw + (["--tta", tta] if tta else [])
        found = _shared(path, [*overrides, *options], workers or 1)
    else:
        code, found = _worker(checkpoint, overrides, world, raw=raw, tta=tta)
        if result is not None and found is not None:
            from shoal.base.files import write_whole

            write_whole(result, json.dumps(found))
        if found is None or result is not None:
            return code
    click.echo(json.dumps(found) if as_json else _text(found))
    return DONE


def _check(path: Path, overrides: tuple[str, ...]) -> None:
    """Tells what is wrong with the overrides before torch is imported; damage is for others to find."""
    from shoal.base.run import MANIFEST
    from shoal.recipe.saved import recipe_of

    try:
        manifest = json.loads((path / MANIFEST).read_text())
    except (OSError, ValueError):
        return
    if isinstance(manifest, dict) and "recipe" in manifest:
        recipe_of(manifest, path, overrides)


def _worker(
    path: Path, overrides: tuple[str, ...], world: World | None, *, raw: bool, tta: str | None
) -> tuple[int, dict[str, Any] | None]:
    """The exit code; and the figures, at worker 0."""
    from shoal.train.validate import validate

    if world is None:
        return DONE, validate(path, overrides, None, raw=raw, tta=tta)
    from shoal.train.worker import main

    found: dict[str, Any] | None = None

    def work() -> int:
        nonlocal found
        found = validate(path, overrides, world, raw=raw, tta=tta)
        return DONE

    return main(work), found


def _shared(path: Path, words: list[str], workers: int) -> dict[str, Any]:
    """The figures that so many workers on this host find together. ShoalError: why they did not."""
    import secrets

    from shoal.base.run import Run
    from shoal.cli.hosts_option import launcher_for, reach_of
    from shoal.launch.job import Job, Role

    with tempfile.TemporaryDirectory(prefix="shoal-eval-") as folder:
        result = Path(folder) / "result.json"
        argv = (sys.executable, "-m", "shoal", "eval", str(path), *words, "--result", str(result))
        job = Job((Role("worker", workers, argv),), Run(Path(folder)).folder, id=secrets.token_hex(8), hang_s=None)
        starter = launcher_for("local", (), reach_of(None, None, ()))
        outcome = starter.start(starter.plan(job)).wait()
        if outcome.exit_code == DONE:
            return json.loads(result.read_text())
        told = [line for line in outcome.lines if not line.startswith("log: ")]  # which is gone with its folder
        error = ShoalError("\n".join(told) or f"exit {outcome.exit_code}")
        error.exit_code = outcome.exit_code
        raise error


def _text(found: dict[str, Any]) -> str:
    from shoal.report.tables import table

    weights = "moving average" if found["averaged"] else "as trained"
    flipped = "; mean of each image and its mirror image" if found["tta"] else ""
    n = f"n = {found['count']:,}"
    many = found["outputs"] > 5  # of five classes or fewer the right one is always among five
    figures = [
        ("checkpoint", f"{found['checkpoint']} (step {found['step']}, weights {weights}{flipped})"),
        ("top-1", f"{found['top1']:.4f}  ({found['correct1']:,} correct, {n})"),
        *([("top-5", f"{found['top5']:.4f}  ({found['correct5']:,} correct, {n})")] if many else []),
        ("loss", f"{found['loss']:.4f}  (mean per image, {n})"),
    ]
    classes = found["classes"]
    shown = classes if len(classes) <= _ALL else sorted(classes, key=lambda row: row["top1"])[:_WORST]
    header = ("class", "n", "top-1", *(["top-5"] if many else []), "most mistaken for")
    rows = [
        (
            row["class"],
            f"{row['count']:,}",
            f"{row['top1']:.4f}",
            *([f"{row['top5']:.4f}"] if many else []),
            _mistaken(row),
        )
        for row in shown
    ]
    blocks = [table(figures), table(rows, header)]
    if len(shown) < len(classes):
        blocks.append(f"The {len(shown)} worst of {len(classes):,} classes; all of them: --json")
    return "\n\n".join(blocks)


def _mistaken(row: dict[str, Any]) -> str:
    return f"{row['mistaken_for']} ({row['mistakes']:,})" if row["mistakes"] else "-"
