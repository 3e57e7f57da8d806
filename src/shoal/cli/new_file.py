"""NewFile: where a command writes a file; looked at before the work begins."""

from __future__ import annotations

from pathlib import Path

import click

from shoal.base.errors import UsageError


class NewFile(click.ParamType):
    """A path in a folder that is there; a file there is replaced."""

    name = "FILE"

    def convert(self, value, param, ctx):
        path = Path(value)
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise UsageError(f"{param.opts[0] if param else 'FILE'} {path}: no such folder to write a file in")
        return path
