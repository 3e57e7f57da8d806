"""Recipe: one training job, wholly. Every key a recipe file may hold, with its help under it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from shoal.base.duration import Duration
from shoal.base.errors import UsageError
from shoal.recipe.part import Options, Part

Count = Annotated[int, Meta(ge=1)]


class Ema(Options, frozen=True, kw_only=True):
    """An exponential moving average of the weights, validated and saved in place of the raw ones.

    Stated as a half-life in training time, so that it does not change with the batch: a decay of d per step of B
    images is a half-life of B * ln(1/2) / ln(d) images.
    """

    half_life: Duration = Duration.parse("1ep")
    """Time in which an old weight's part in the average falls to one half."""


class Recipe(Options, frozen=True, kw_only=True):
    """One training job. The order of the keys is the order in which `shoal show` prints them."""

    data: Annotated[Part, Meta(extra={"seam": "sources"})]
    """Where images come from (`shoal list sources`)."""
    model: Annotated[Any, Meta(extra={"options": "shoal.models:Model"})]
    """What is trained (`shoal list models`)."""
    task: Annotated[Part, Meta(extra={"seam": "tasks", "default": "classify"})]
    """How a batch becomes a loss (`shoal list tasks`)."""
    optim: Annotated[Part, Meta(extra={"seam": "optims"})]
    """How gradients become steps (`shoal list optims`)."""
    schedule: Annotated[Part, Meta(extra={"seam": "schedules", "default": "constant"})]
    """The learning rate over images seen (`shoal list schedules`)."""
    batch: Count | None = None
    """Images per optimizer step of the whole job, over all workers."""
    batch_per_worker: Count | None = None
    """Images per step and worker, as MXNet's and torch's scripts counted; then batch = workers x it x accumulate."""
    length: Duration
    """How long to train: 90ep, 5000st or 1.2Mim."""
    precision: Annotated[Part, Meta(extra={"seam": "precisions", "default": "fp32"})]
    """Number format of the forward and backward pass (`shoal list precisions`)."""
    strategy: Annotated[Part, Meta(extra={"seam": "strategies", "default": "ddp"})]
    """How workers agree (`shoal list strategies`)."""
    norm: Literal["shard", "sync", "frozen"] = "shard"
    """BatchNorm statistics: of each shard, of the whole batch (sync), or fixed to the running ones (frozen)."""
    shards: Count | Literal["auto"] = "auto"
    """Pieces every batch is cut into; workers take whole ones, so any number of workers up to it trains the same
    model. auto: one per worker (times accumulate), so that another number of workers trains another model."""
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    """Decides initial weights, the order of samples, augmentation and dropout."""
    accumulate: Count = 1
    """With `shards: auto`: shards per worker, computed one after another before each optimizer step."""
    drop_last: bool = False
    """Leave out an epoch's short last batch instead of training on it."""
    ema: Ema | None = None
    """Moving average of the weights; absent: none."""
    eval_every: Duration = Duration.parse("1ep")
    """Time between validations; the end is always validated."""
    save_every: Duration = Duration.parse("1ep")
    """Time between checkpoints; the end, a new best and a stop by signal are always saved."""
    keep_last: Count = 2
    """Newest checkpoints kept, beside the best one."""
    log_every: Duration = Duration.parse("20st")
    """Time between lines of training metrics."""
    monitor: Duration | None = None
    """Time between looks at weights and gradients (TensorBoard's histograms, `monitor` events); absent: none."""
    trace: Count | None = None
    """Steps to record, from the eleventh of a start on: trace.json.gz in the run folder, for Perfetto; absent: none."""
    desired_accuracy: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Stop once validation top-1 (0 to 1) reaches this; absent: train to the end."""

    def faults(self) -> list[tuple[str, str]]:
        wrong = []
        if (self.batch is None) == (self.batch_per_worker is None):
            wrong.append(("batch", "state either batch (images per step of the whole job) or batch_per_worker"))
        if self.shards != "auto" and self.accumulate > 1:
            wrong.append(
                ("accumulate", f"shards: {self.shards} already says how a batch is computed in pieces; leave it at 1")
            )
        if self.norm == "sync" and self.accumulate > 1:
            wrong.append(("accumulate", "norm: sync needs the whole batch at once; leave it at 1"))
        if self.batch is not None and self.shards != "auto" and self.shards > self.batch:
            wrong.append(("shards", f"{self.shards} shards cannot be cut from a batch of {self.batch} images"))
        if self.norm == "sync" and getattr(self.strategy, "deterministic", False):
            wrong.append(("norm", "sync adds statistics in no fixed order; deterministic needs norm: shard or frozen"))
        wrong += self.strategy.misfits(self)  # type: ignore[attr-defined]
        if getattr(self.strategy, "compress", "none") != "none" and self.precision.name == "fp64":
            wrong.append(("precision", "fp64 has no compressed gradients; leave strategy.compress at none"))
        if self.length.amount == 0:
            wrong.append(("length", "a training of length 0 trains nothing"))
        return wrong

    def batch_for(self, workers: int) -> int:
        """Images per optimizer step of the whole job with this many workers."""
        return self.batch or (self.batch_per_worker or 1) * workers * self.accumulate

    def check_cut(self, workers: int) -> None:
        """UsageError when this many workers' shards cannot be cut from their batch."""
        if self.shards_for(workers) > self.batch_for(workers):
            raise UsageError(
                f"shards: {self.shards_for(workers)} cannot be cut from a batch of {self.batch_for(workers)} images"
            )

    def shards_for(self, workers: int) -> int:
        """V, the pieces each batch is cut into with this many workers."""
        if self.shards != "auto":
            return self.shards
        strategy: Any = self.strategy
        return strategy.at_once(workers) * self.accumulate


FREE_KEYS = frozenset(
    {"eval_every", "save_every", "keep_last", "log_every", "monitor", "trace"}
    | {f"data.{key}" for key in ("threads", "path", "val", "eval_batch", "download", "decoder.name")}
    | {f"data.{key}" for key in ("cache", "cache_path", "memory_gib")}
    | {"task.teacher.run", "task.teacher.pretrained"}  # whose weights are compared themselves
)
"""Keys that a resumed run may change without asking: they say when, how fast and from where, not what is trained."""
