"""Settings: an old job's values, read one by one; what nobody asked for is found at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from shoal.importing.findings import Findings

Path = tuple[str, ...]


class Settings:
    """Plain values (mappings, lists, scalars) below dotted paths, each with the place where it was written."""

    def __init__(
        self, values: Any, where: Callable[[Path], str], findings: Findings, spell: Callable[[str], str] = str
    ) -> None:
        """`spell`: how a path is written in the old world, `--batch-size` for batch_size."""
        self.values, self.where, self.findings, self.spell = values, where, findings, spell
        self._read: set[Path] = set()

    def has(self, path: str) -> bool:
        """Whether anything but null stands there; this is not yet a reading of it."""
        return self._held(_steps(path)) is not None

    def whole(self, path: str) -> Any:
        """What stands at `path`, with all below it; None where nothing does."""
        self._read.add(_steps(path))
        return self._held(_steps(path))

    def number(self, path: str, default: float | None = None) -> float | None:
        """A finite number, written as one or as text such as 1e-3 or 1.0/255.0."""
        value = self.whole(path)
        if value is None:
            return default
        found = number(value)
        if found is None:
            self.wrong(path, f"expected a number, got {value!r}")
        return default if found is None else found

    def count(self, path: str, default: int | None = None) -> int | None:
        """A whole number of 1 or more."""
        value = self.number(path)
        if value is None:
            return default
        if value != int(value) or value < 1:
            self.wrong(path, f"expected a whole number >= 1, got {value:g}")
            return default
        return int(value)

    def text(self, path: str, default: str = "") -> str:
        value = self.whole(path)
        return default if value is None else str(value)

    def numbers(self, path: str) -> list[float] | None:
        """A list of numbers; None where nothing stands there, or something else (which is then wrong)."""
        value = self.whole(path)
        if value is None:
            return None
        found = [number(one) for one in value] if isinstance(value, (list, tuple)) else [None]
        if None in found:
            self.wrong(path, f"expected a list of numbers, got {value!r}")
            return None
        return [one for one in found if one is not None]

    def flag(self, path: str, default: bool = False) -> bool:
        value = self.whole(path)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        told = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
        if str(value).lower() not in told:
            self.wrong(path, f"expected true or false, got {value!r}")
        return told.get(str(value).lower(), default)

    def items(self, path: str) -> Iterator[tuple[str, str]]:
        """(name, path of its options) of each entry of a list such as `[{CELoss: {…}}, …]`."""
        self._read.add((*_steps(path), "*"))
        held = self._held(_steps(path))
        if held is not None and not isinstance(held, list):
            self.whole(path)
            self.wrong(path, f"expected a list, got {held!r}")
            return
        for place, entry in enumerate(held or ()):
            self._read.add((*_steps(path), str(place), "*"))
            for name in entry if isinstance(entry, dict) else (entry,):
                yield str(name), f"{path}.{place}.{name}"

    def keys(self, path: str) -> list[str]:
        held = self._held(_steps(path))
        return [str(key) for key in held] if isinstance(held, dict) else []

    def leave(self, path: str, why: str) -> None:
        """Reads what stands there, if anything, and says why the recipe does without it."""
        if (value := self.whole(path)) is not None:
            self.findings.leave(self.place(path), f"{self.spell(path)}{_shown(value)}", why)

    def lack(self, path: str, why: str) -> None:
        self.whole(path)
        self.findings.lack(self.place(path), self.spell(path), why)

    def skip(self, *paths: str) -> None:
        """Reads what means nothing here, and is not worth telling."""
        for path in paths:
            self.whole(path)

    def wrong(self, path: str, why: str) -> None:
        self.findings.fault(self.place(path), self.spell(path), why)

    def place(self, path: str) -> str:
        return self.where(_steps(path))

    def unread(self) -> list[str]:
        """Dotted paths that nobody has read, the uppermost of each group."""

        def walk(value: Any, at: Path) -> Iterator[Path]:
            if at in self._read:
                return
            held = list(_held_in(value))
            known = [key for key, _ in held if any(read[: len(at) + 1] == (*at, key) for read in self._read)]
            if at and not known and (*at, "*") not in self._read:
                yield at
                return
            for key, below in held:
                yield from walk(below, (*at, key))

        return [".".join(at) for at in walk(self.values, ())]

    def _held(self, path: Path) -> Any:
        value = self.values
        for step in path:
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
                value = value[int(step)]
            else:
                return value if isinstance(value, str) and step == value else None  # an entry without options
        return value


def number(value: Any) -> float | None:
    """A finite number out of 0.1, "0.1", "1e-3" or a fraction "1.0/3."; else None. Nothing is ever evaluated."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        over, slash, under = str(value).partition("/")
        found = float(over) / float(under) if slash else float(over)
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _steps(path: str) -> Path:
    return tuple(path.split("."))


def _held_in(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((str(key), below) for key, below in value.items())
    elif isinstance(value, list):
        yield from ((str(place), below) for place, below in enumerate(value))


def _shown(value: Any) -> str:
    return f" {value}" if isinstance(value, (int, float, str)) and len(str(value)) <= 60 else ""
