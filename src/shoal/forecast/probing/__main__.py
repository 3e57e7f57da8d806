"""`python -m shoal.forecast.probing FOLDER RANK`: one process of the probe.

FOLDER/task.json says what to do; rank 0 leaves FOLDER/calibration.json, or whoever fails FOLDER/error.txt.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import torch

from shoal.base.errors import ShoalError
from shoal.forecast.probing.anatomy import bare
from shoal.forecast.probing.exchange import serve
from shoal.forecast.probing.member import Member
from shoal.forecast.probing.task import ERROR, FOUND, TASK, Task
from shoal.recipe.load import parse
from shoal.train.setup import open_data


def main(folder: Path, rank: int) -> int:
    task = msgspec.json.decode((folder / TASK).read_bytes(), type=Task)
    torch.set_num_threads(task.threads)
    try:
        if rank == task.processes:
            serve(folder, task)
        recipe = parse(task.recipe, "recipe").recipe
        found = bare(recipe) if task.only_size else Member(folder, task, recipe, open_data(recipe), rank).measure()
    except ShoalError as error:
        (folder / ERROR).write_text(str(error))
        return error.exit_code
    if rank == 0:
        (folder / FOUND).write_bytes(msgspec.json.encode(found))
    return 0


sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
