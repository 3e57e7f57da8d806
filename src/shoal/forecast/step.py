"""Step: what the busiest worker does in a step of the job, and where its seconds go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cut:
    """What the busiest worker, or pipeline of workers, computes in a step."""

    batch: int
    """Images of the whole job."""
    shards: int
    """Of this worker, one after another."""
    shard_images: float
    workers: int
    """Or pipelines."""
    stages: int = 1
    """Workers of a pipeline."""

    @staticmethod
    def of(batch: int, shards: int, workers: int, stages: int = 1) -> Cut:
        return Cut(batch, -(-shards // workers), batch / shards, workers, stages)

    @property
    def images(self) -> float:
        return self.shards * self.shard_images

    @property
    def all_shards(self) -> int:
        """Of the whole job."""
        return round(self.batch / self.shard_images)


@dataclass
class Step:
    """Where the seconds of one step of the whole job go. They add up to `total`."""

    compute: float = 0.0
    """Forward and backward passes, the update."""
    exchange: float = 0.0
    """Gradients or weights on their way, as far as nothing else was done meanwhile."""
    waiting: float = 0.0
    """For the slowest worker."""
    input: float = 0.0
    """For images."""
    pauses: float = 0.0
    """Validation and checkpoints, shared out among the steps."""
    told: str = ""
    """What the exchange consists of, in words."""
    staleness: float | None = None

    @property
    def total(self) -> float:
        return self.compute + self.exchange + self.waiting + self.input + self.pauses

    @property
    def parts(self) -> dict[str, float]:
        names = ("compute", "exchange", "waiting", "input", "pauses")
        return {name: getattr(self, name) for name in names}
