"""Grid: a gang in rows of stages. Each row is one pipeline, each column the workers who hold the same stage."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from shoal.step.gang import Alone, Gang, Group


class Grid(Group):
    """Neighbours in rank make a pipeline, so that it lies on one host where it can. Data is shared out by pipeline."""

    def __init__(self, gang: Group, stages: int) -> None:
        """A collective. stages: divides the number of ranks."""
        super().__init__(gang.device, gang.group)
        n = self.num_ranks
        self.stages, (self.replica, self.stage) = stages, divmod(self.rank, stages)
        rows = [[*range(low, low + stages)] for low in range(0, n, stages)]
        columns = [[*range(stage, n, stages)] for stage in range(stages)]
        self.row = self._of(rows)
        """Those of this pipeline, in the order of stages."""
        self.column = self._of(columns)
        """Those who hold this stage, in the order of pipelines."""

    def _of(self, groups: list[list[int]]) -> Gang:
        """The gang among several that this rank is in; every rank makes all of them, in the same order."""
        mine: Gang = Alone(self.device)
        for ranks in groups:
            made: Any = dist.new_group(ranks) if len(ranks) > 1 else None
            if made is not None and self.rank in ranks:
                mine = Group(self.device, made)
        return mine

    @property
    def place(self) -> tuple[int, int]:
        return self.replica, self.num_ranks // self.stages

    @property
    def speaks(self) -> bool:
        return self.stage == self.stages - 1

    @property
    def leads(self) -> bool:
        return self.rank == 0
