"""Task: what the probe's processes are told, in files that both ends know."""

from __future__ import annotations

import msgspec

TASK, FOUND, ERROR = "task.json", "calibration.json", "error.txt"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    recipe: str
    """As YAML, resolved."""
    shard_images: list[int]
    """Sizes of shards to measure; what lies between is taken to be a line."""
    together: int
    """Processes that compute at the same time."""
    threads: int
    servers: bool
    """Measure parameter servers, too."""
    only_size: bool = False
    """Do not compute: only look how large the model and the data are."""
    compute_s: float = 6.0
    """For the blocks of steps."""
    limit_s: float = 60.0
    secret: str = ""

    @property
    def processes(self) -> int:
        """Those that compute and exchange; servers come beside."""
        return 1 if self.only_size else max(2, self.together)
