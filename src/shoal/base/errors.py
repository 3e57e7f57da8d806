"""Errors that say what is wrong, where, and what would be right."""

from __future__ import annotations

import os
from collections.abc import Iterable

DONE, FAILED, USAGE, REQUEUE, INTERRUPTED = 0, 1, 2, 75, 130
"""Exit codes: done; failed; wrong usage or recipe; "requeue me" (stopped by a signal, saved); interrupted (Ctrl-C)."""


class ShoalError(Exception):
    """A failure a person can act on. Shown as one line, without a traceback; the process exits with `exit_code`."""

    exit_code = FAILED


class UsageError(ShoalError):
    """Wrong command line or recipe: nothing was trained, and something is to be said differently."""

    exit_code = USAGE


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path for messages; bytes of a name that are not UTF-8 are shown as \\xNN, so that it can always be printed."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def closest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no known word is near."""
    import difflib  # only on the way to an error

    near = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""


def first_line(error: BaseException) -> str:
    """What an error of a library says, for use in one line of ours; its type where it says nothing."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The tail of an error about an unknown name: `; did you mean 'x'? (known: x, y)`."""
    known = sorted(known)
    shown = ", ".join(known[:40]) + (f", … {len(known)} in all" if len(known) > 40 else "")
    return f"{closest(word, known)} (known: {shown})" if known else ""
