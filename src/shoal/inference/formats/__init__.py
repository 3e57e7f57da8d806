"""Formats that a model can be written in. One file each, with `write` (a file) and `reader` (what a file computes):

write(graph, path, metadata)    graph: uint8 [B, C, h, w] -> logits, on the CPU; metadata: texts by name
reader(graph, path)             a function of the same form, which computes what stands in the file
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator

import torch

from shoal.base.errors import ShoalError, first_line


def traced(graph: torch.nn.Module, example: torch.Tensor) -> torch.export.ExportedProgram:
    """The graph of any number of images. ShoalError names the line of the model that torch.export cannot follow."""
    batch = torch.export.Dim("batch")
    try:
        with silent():
            return torch.export.export(graph, (example,), dynamic_shapes={"images": {0: batch}})
    except Exception as error:  # torch.export's errors have no common base
        lines = re.findall(r'File "([^"]+)", line (\d+)', str(error))
        where = f" at {lines[-1][0]}:{lines[-1][1]}" if lines else ""
        raise ShoalError(f"this model cannot be exported: torch.export stops{where} ({first_line(error)})") from error


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Without what exporters print and warn of on their way; what matters of it is raised."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with contextlib.redirect_stderr(io.StringIO()):
                yield
    finally:
        logging.disable(before)
