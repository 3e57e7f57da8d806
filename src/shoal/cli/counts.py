"""Several numbers of something, as in 1,2,4."""

from __future__ import annotations

import click


class Counts(click.ParamType):
    """`1,2,4` of `what`."""

    name = "N,N…"

    def __init__(self, what: str) -> None:
        self.what = what

    def convert(self, value, param, ctx):
        if isinstance(value, tuple):
            return value
        words = str(value).split(",")
        if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
            self.fail(f"{value!r}: expected numbers of {self.what} from 1 on, as in 1,2,4", param, ctx)
        return tuple(int(word) for word in words)
