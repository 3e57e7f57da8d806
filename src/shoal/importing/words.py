"""Words of a command line, each with the place where it was written; out of arguments or out of a shell script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from shoal.base.errors import UsageError

COMMAND_LINE = "command line"
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PROGRAMS = re.compile(r"(?:\S*/)?(?:python[\d.]*|torchrun|horovodrun|mpirun|fleetrun|mpiexec|srun|\S+\.py)$")


class Word(NamedTuple):
    text: str
    where: str


class Command(NamedTuple):
    """One command: what was assigned before it, and its words."""

    env: dict[str, str]
    words: list[Word]


def given(arguments: Iterable[str]) -> Command:
    """The command that was written behind `shoal import`. UsageError: there is none."""
    return _command([Word(text, COMMAND_LINE) for text in arguments], {})


def script(path: Path) -> Command:
    """The one training command of a shell script. UsageError: none, several, or unreadable."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'no text'})") from None
    env: dict[str, str] = {}
    found: list[Command] = []
    words: list[Word] = []
    for number, line in enumerate(text.splitlines(), 1):
        goes_on = line.rstrip().endswith("\\")
        try:
            parts = shlex.split(line.rstrip().removesuffix("\\") if goes_on else line, comments=True)
        except ValueError as error:
            raise UsageError(f"{path}:{number}: not to be read as words: {str(error).lower()}") from None
        words += [Word(_expanded(part, env, f"{path}:{number}"), f"{path}:{number}") for part in parts]
        if goes_on or not words:
            continue
        line_words, words = words, []
        if line_words[0].text == "export":
            line_words = line_words[1:]
        assigned = [_ASSIGNMENT.fullmatch(word.text) for word in line_words]
        if line_words and all(assigned):
            env |= {match[1]: match[2] for match in assigned if match}
        elif any(_PROGRAMS.match(word.text) for word in line_words):
            found.append(_command(line_words, env))
    if not found:
        raise UsageError(f"{path}: no command of python, torchrun, horovodrun, fleetrun or mpirun in it")
    if len(found) > 1:
        places = ", ".join(command.words[0].where.rpartition(":")[2] for command in found)
        raise UsageError(f"{path}: {len(found)} commands (lines {places}); import one at a time")
    return found[0]


def _expanded(text: str, env: dict[str, str], where: str) -> str:
    """`${ip_list}` as the script set it before; nothing else of a shell's is done."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in env:
            raise UsageError(f"{where}: ${name}: not set in this script; write its value in its place")
        return env[name]

    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", value, text)


def _command(words: list[Word], env: dict[str, str]) -> Command:
    env = dict(env)
    while words and (match := _ASSIGNMENT.fullmatch(words[0].text)):
        env[match[1]] = match[2]
        words = words[1:]
    if not words:
        raise UsageError("no command; expected one such as: python main.py -a resnet50 IMAGENET")
    return Command(env, words)
