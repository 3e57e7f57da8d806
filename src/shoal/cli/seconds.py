"""Seconds as people write them: 30, 30s, 2min; or off."""

from __future__ import annotations

import re

import click

_UNITS = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}


class Seconds(click.ParamType):
    """A number of seconds, at least `least`; `off` is None, where it may be."""

    name = "seconds"

    def __init__(self, least: float, *, may_be_off: bool = False) -> None:
        self.least, self.may_be_off = least, may_be_off

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        if isinstance(value, (int, float)):
            return float(value)
        if value == "off" and self.may_be_off:
            return None
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|)", str(value))
        if found is None:
            off = " or off" if self.may_be_off else ""
            self.fail(f"{value!r} is no time; expected one as in 30s or 2min{off}", param, ctx)
        seconds = float(found[1]) * _UNITS[found[2]]
        if seconds < self.least:
            self.fail(f"{value} is less than {self.least:g}s", param, ctx)
        return seconds
