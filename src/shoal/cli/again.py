"""This very command once more, on another host: what an engine starts inside a job of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

_DROPPED = ("--dry-run", "--wait", "--detach")
_FOLDERS = ("--run", "--log-dir", "--launcher-arg")
"""Options whose value is said anew, or was for the submission alone."""


def again(
    words: Sequence[str], folder: Path, env: Mapping[str, str], program: Sequence[str] = ()
) -> tuple[tuple[str, ...], dict[str, str]]:
    """`words` with the run folder by its full path, and the variables that they name.

    They are a verb and what follows it; `program`: those at their end that are another program's.
    `--env KEY=VALUE` becomes `--env KEY`: the words are written into a script, where values could be read.
    """
    verb, *rest = words[: len(words) - len(program)] or [""]
    folder_option = "--log-dir" if verb == "launch" else "--run"
    kept: list[str] = [verb, folder_option, str(folder.absolute())]
    variables: dict[str, str] = {}
    taken = iter(rest)
    for word in taken:
        option, equals, value = word.partition("=")
        if (word == "--" and program) or word in _DROPPED:
            continue
        elif option in _FOLDERS:
            if not equals:
                next(taken, None)
        elif option == "--resume":  # `never` is looked at once, now: put back into a queue, the job is to go on
            value = value if equals else next(taken, "")
            kept += [] if value == "never" else ["--resume", value]
        elif option == "--env":
            key, given, text = (value if equals else next(taken, "")).partition("=")
            if given:
                variables[key] = text
            elif key in env:
                variables[key] = env[key]
            kept += ["--env", key]
        else:
            kept.append(word)
    return (*kept, *(["--", *program] if program else [])), variables
