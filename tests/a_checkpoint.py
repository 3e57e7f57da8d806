"""A run folder with one checkpoint, of a model that was set up and never trained: in a moment, without a process."""

from __future__ import annotations

from pathlib import Path

from shoal.base.run import Run

DIGITS = """\
data: {name: digits, limit: 100, eval_batch: 40}
model: digits-cnn
optim: {name: sgd, lr: 0.1}
batch: 20
length: 1ep
strategy: {name: single, threads: 1}
"""


def save_run(folder: Path, recipe: str = DIGITS, *overrides: str) -> Run:
    """The run's best, and only, checkpoint is of step 5."""
    from shoal.recipe.load import dump, parse
    from shoal.step.gang import Alone
    from shoal.train import checkpoint
    from shoal.train.setup import Setup, manifest, open_data

    loaded, run = parse(recipe, "recipe.yaml", overrides, name="small"), Run(folder)
    data = open_data(loaded.recipe)
    rig = Setup.of(loaded.recipe, Alone(), data).rig
    state = rig.state_dict()
    told = {"step": 5, "images": 100, "epoch": 1.0, "validation": {}}
    checkpoint.save(
        run.checkpoint(5),
        model=state["model"],
        ema=state.get("ema"),
        state={},
        manifest={**told, **manifest(loaded.recipe, "small", data, threads=1)},
    )
    run.write_best(5, 0.1)
    run.recipe.write_text(dump(loaded.recipe))
    return run
