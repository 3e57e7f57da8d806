"""`shoal eval`: validates a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("eval", short_help="Validate a checkpoint: the same figures as in training.")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--raw", is_flag=True, help="Use the weights themselves where the checkpoint has a moving average.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def command(checkpoint: Path, overrides: tuple[str, ...], raw: bool, as_json: bool) -> None:
    """Validate CHECKPOINT (a checkpoint's folder, or a run's, whose best is taken) on its recipe's validation images.

    Recipe keys can be changed, as in data.limit=100.
    """
    from shoal.train.checkpoint import resolve

    resolve(checkpoint)  # a wrong path is told before the model is made
    from shoal.report.tables import table
    from shoal.train.restored import Restored

    restored = Restored(checkpoint, overrides, raw=raw)
    score = restored.evaluate()
    if as_json:
        figures = {"loss": score.loss, "top1": score.top1, "top5": score.top5}
        counts = {"count": score.count, "correct1": score.correct1, "correct5": score.correct5}
        click.echo(json.dumps({"checkpoint": str(restored.path), "averaged": restored.averaged, **figures, **counts}))
        return
    weights = "moving average" if restored.averaged else "as trained"
    click.echo(
        table(
            [
                ("checkpoint", f"{restored.path} (step {restored.manifest['step']}, weights {weights})"),
                ("top-1", f"{score.top1:.4f}  ({score.correct1:,} correct, n = {score.count:,})"),
                ("top-5", f"{score.top5:.4f}  ({score.correct5:,} correct, n = {score.count:,})"),
                ("loss", f"{score.loss:.4f}  (mean per image, n = {score.count:,})"),
            ]
        )
    )
