"""`shoal export`: a model for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from shoal.base.errors import UsageError, shown_path

ENDINGS = {"onnx": ".onnx", "torch-export": ".pt2", "safetensors": ".safetensors"}
"""Format -> how its files are called."""


@click.command("export", short_help="Write a model for other programs: ONNX, torch.export, safetensors.")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--to", type=click.Choice(list(ENDINGS)), required=True, help="The format.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="[default: RECIPE.onnx, .pt2 …, here]")
@click.option("--int8", is_flag=True, help="ONNX: weights as int8 (dynamic quantisation); its accuracy is measured.")
@click.option("--raw", is_flag=True, help="Use the weights themselves where the checkpoint has a moving average.")
def command(checkpoint: Path, overrides: tuple[str, ...], to: str, out: Path | None, int8: bool, raw: bool) -> None:
    """Write the model of CHECKPOINT (a checkpoint's folder, or a run's, whose best is taken) as one file.

    It takes pixels, uint8 [batch, channels, height, width], and gives logits; safetensors holds the weights alone. The
    names of the classes and the preprocessing are in its metadata. The file is compared with the model before it takes
    its name. Recipe keys can be changed, as in data.path=FOLDER for validation images that lie elsewhere.
    """
    from shoal.base.run import resolve

    resolve(checkpoint)  # a wrong path is told before torch is imported
    if int8 and to != "onnx":
        raise UsageError(f"--int8 is for --to onnx, not for {to}")
    if out is not None and out.is_dir():
        raise UsageError(f"--out {shown_path(out)}: is a folder; name a file")
    import torch

    from shoal.inference.export import export
    from shoal.report.tables import table
    from shoal.train.restored import Restored

    restored = Restored(checkpoint, overrides, raw=raw, device=torch.device("cpu"))
    path = out or Path(f"{restored.manifest['name']}{'-int8' if int8 else ''}{ENDINGS[to]}")
    made = export(restored, to, path, int8=int8)
    shape = ", ".join(map(str, made.shape))
    rows = [
        ("file", f"{shown_path(made.path)} ({made.path.stat().st_size / 1e6:,.2f} MB)"),
        ("of", f"{shown_path(restored.path)} (step {restored.manifest['step']})"),
    ]
    if to != "safetensors":
        rows += [("input", f"images: uint8 [batch, {shape}]"), ("output", f"logits: float32 [batch, {made.classes}]")]
    rows.append(("difference", f"{made.difference:.2g} at most, of any logit, n = {made.images}"))
    for name, score in zip(("top-1 of the model", "top-1 of the file"), made.scores or (), strict=False):
        rows.append((name, f"{score.top1:.4f}  ({score.correct1:,} correct, n = {score.count:,})"))
    click.echo(table(rows))
