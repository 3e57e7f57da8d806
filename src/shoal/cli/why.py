"""`shoal why`: where the time of a run went, and what held it back."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("why", short_help="Say where a run's time went and what held it back.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def command(run: Path, as_json: bool) -> None:
    """Print the shares of RUN's time, which sum to 100 %, and what held it back, with what would be gained.

    RUN is a run folder, of a training that is done or under way.
    """
    from shoal.base.errors import UsageError
    from shoal.base.run import Run
    from shoal.report.spent import Spent
    from shoal.report.why import Why

    if not Run(run).began:
        raise UsageError(f"{run}: not a run folder (it has no recipe.yaml)")
    why = Why.of(Spent.of(Run(run)))
    click.echo(_json(why) if as_json else _text(why))


def _text(why):
    from shoal.report.tables import table

    spent = why.spent
    rows = [(name, seconds, f"{100 * why.shares[name]:.1f} %") for name, seconds in spent.parts.items()]
    lines = [
        table([*rows, ("all", spent.total_s, "100.0 %")], ("part", "seconds", "share")),
        "",
        f"{spent.steps} steps of {spent.workers} workers measured; the instruments took {spent.own_s:.3f} s",
        *([f"compute holds the exchange and waiting for others, too: {spent.strategy}'s go on within the passes"]
          if spent.hidden else []),
        "",
    ]  # fmt: skip
    if not why.brakes:
        return "\n".join([*lines, f"No brake: {why.verdict}"])
    brakes = [(f"{brake.speed_up:.2f} x", brake.kind, brake.text) for brake in why.brakes]
    return "\n".join([*lines, table(brakes, ("without", "brake", "because"))])


def _json(why) -> str:
    import json
    from dataclasses import asdict

    return json.dumps({**asdict(why), "verdict": why.verdict}, indent=1)
