"""`shoal forecast`: what a recipe would come to on workers that are not there."""

from __future__ import annotations

import json
import math
from pathlib import Path

import click

from shoal.base.errors import UsageError


@click.command("forecast", short_help="How fast a recipe would train on many workers, and what would bind.")
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--workers", "-n", required=True, metavar="8,64,1024", help="Numbers of workers to reckon.")
@click.option(
    "--link", metavar="RATE", help="A host's port, each way: 25Gbps, 1GB/s. Absent: with --from that study's."
)
@click.option("--latency", metavar="TIME", help="From one host to another, one way: 20us. [default: 50us]")
@click.option("--per-host", type=click.IntRange(min=1), default=1, show_default=True, metavar="K",
              help="Workers on a host.")  # fmt: skip
@click.option("--servers", "-s", type=click.IntRange(min=1), metavar="S", help="For strategy=ps. [default: 1]")
@click.option("--strategies", metavar="A,B", help="Ways to compare: ddp,ps,ps:mode=async,fsdp, "
              "pipeline:stages=4,local_sgd:every=16. [default: the recipe's]")  # fmt: skip
@click.option("--all-reduce", "algorithm", type=click.Choice(["ring", "tree"]), default="ring", show_default=True,
              help="How gradients are summed.")  # fmt: skip
@click.option("--weak", is_flag=True, help="Every worker computes what one does in the recipe: batch x workers.")
@click.option("--slow", type=click.FloatRange(min=1), default=1.0, metavar="X", help="One worker is X times slower.")
@click.option("--rate", metavar="IMAGES/S", help="What one worker computes, in the place of the probe: 2500im/s.")
@click.option("--from", "study", type=click.Path(path_type=Path), metavar="STUDY", help="Calibrate by a study's runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: seconds, bytes and images throughout.")
def command(
    recipe: str,
    overrides: tuple[str, ...],
    workers: str,
    link: str | None,
    latency: str | None,
    per_host: int,
    servers: int | None,
    strategies: str | None,
    algorithm: str,
    weak: bool,
    slow: float,
    rate: str | None,
    study: Path | None,
    as_json: bool,
) -> None:
    """Reckon how fast RECIPE would train, for how many machine-hours, and what binds at each number of workers.

    Calibrated by a probe of this machine (a minute or less, with the recipe's own data and model), by what one worker
    computes (--rate), or by a study of `shoal scale` (--from). docs/forecast.md has the formulas and their limits.
    """
    from shoal.forecast import units

    sizes = units.counts(workers)
    speed = units.images_per_s(rate) if rate is not None else None
    if not math.isfinite(slow):
        raise UsageError(f"--slow {slow}: expected how many times slower one worker is, as in 3")
    if speed is not None and study is not None:
        raise UsageError("--rate and --from both say what a worker computes; leave one out")
    if link is None and study is None:
        raise UsageError("--link: how fast is a host's port? As in --link 25Gbps (or calibrate by a study with --from)")
    if link is None and latency is not None:
        raise UsageError("--latency without --link: the study's own network has its latency in it already")
    byte_s = 1 / units.bytes_per_s(link) if link is not None else None
    latency_s = units.seconds(latency) if latency is not None else 50e-6
    from shoal.forecast.question import Question

    question = Question.of(
        recipe, overrides, sizes, strategies, algorithm, weak=weak, servers=servers, per_host=per_host, slow=slow,
        byte_s=byte_s, latency_s=latency_s,
    )  # fmt: skip
    if study is not None:
        answer = question.by_study(study)
    else:
        if speed is None:
            click.echo("probing this machine with the recipe's own steps, a minute at most …", err=True)
        answer = question.by_rate(speed) if speed is not None else question.by_probe()
    click.echo(json.dumps(answer.plain(), indent=1) if as_json else answer.text())
