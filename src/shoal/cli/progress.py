"""Progress: how far a command with many images is."""

from __future__ import annotations

import sys
import time

import click


class Progress:
    """On stderr: one line that is written over in a terminal, one every ten seconds elsewhere."""

    def __init__(self, count: int = 0) -> None:
        self._terminal = sys.stderr.isatty()
        self._every_s = 0.2 if self._terminal else 10.0
        self.begin(count)

    def begin(self, count: int) -> None:
        """There are so many, from now on."""
        self._count, self._before, self._began = count, 0, time.monotonic()
        self._next = self._began + self._every_s

    def kept(self, count: int) -> None:
        """So many were done by an earlier run."""
        click.echo(f"going on after {count:,} of {self._count:,} images", err=True)
        self._before, self._began = count, time.monotonic()

    def done(self, count: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every_s
            rate = (count - self._before) / (now - self._began)
            line = f"{count:,} of {self._count:,} images, {rate:,.0f}/s, {(self._count - count) / rate:,.0f} s left"
            click.echo(f"\r{line:<70}" if self._terminal else line, err=True, nl=not self._terminal)

    def bad(self, line: str) -> None:
        self.end()
        click.echo(f"BAD: {line}", err=True)

    def end(self) -> None:
        if self._terminal:
            click.echo(f"\r{'':<70}\r", err=True, nl=False)
