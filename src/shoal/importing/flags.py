"""Flags: an old script's options as argparse read them (abbreviations and all), with their places."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from shoal.base.errors import UsageError, did_you_mean
from shoal.importing.findings import Findings
from shoal.importing.settings import Settings
from shoal.importing.words import COMMAND_LINE, Word


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class _Once(argparse.Action):
    """Stores a value; the same flag with another one contradicts it."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        if getattr(namespace, self.dest, values) != values:
            raise UsageError(f"{option}: contradicts itself: {getattr(namespace, self.dest)} and {values}")
        setattr(namespace, self.dest, values)


class Flags:
    """Which options a script has. Values stay text; `Settings` reads them by name (`lr`, `batch_size`)."""

    def __init__(self, script: str) -> None:
        self.script = script
        self._parser = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
        self._known: list[str] = []

    def value(self, *names: str) -> Flags:
        """Options with one value each; other names of one are in the same text, `-b/--batch-size`."""
        for text in names:
            self._known += text.split("/")
            self._parser.add_argument(*text.split("/"), action=_Once)
        return self

    def several(self, *names: str) -> Flags:
        """Options that may be repeated: a list of texts."""
        for text in names:
            self._known += text.split("/")
            self._parser.add_argument(*text.split("/"), action="append")
        return self

    def switch(self, *names: str) -> Flags:
        """Options without a value."""
        for text in names:
            self._known += text.split("/")
            self._parser.add_argument(*text.split("/"), action="store_const", const=True)
        return self

    def maybe(self, name: str) -> Flags:
        """An option whose value may be left out: then true."""
        self._known.append(name)
        self._parser.add_argument(name, nargs="?", const=True)
        return self

    def place(self, name: str, required: bool = False) -> Flags:
        """An argument without a flag."""
        self._parser.add_argument(name, nargs=None if required else "?")
        return self

    def read(self, words: Sequence[Word], findings: Findings) -> Settings:
        """All of `words`; what is none of the script's is wrong. UsageError: a value is missing, or contradicts."""
        try:
            told, rest = self._parser.parse_known_args([word.text for word in words])
        except UsageError as error:
            where = words[0].where.rpartition(":")[0] if words and words[0].where != COMMAND_LINE else COMMAND_LINE
            raise UsageError(f"{where}: {self.script}: {error}") from None
        for text in rest:
            near = did_you_mean(text.partition("=")[0], self._known) if text.startswith("-") else ""
            findings.strange(place(words, text), text, f"{self.script} has no such option{near}")
        spell = lambda key: f"--{key.replace('_', '-')}"  # noqa: E731
        return Settings(vars(told), lambda at: place(words, spell(at[0])), findings, spell)

    def head(self, words: Sequence[Word]) -> tuple[Settings, list[Word]]:
        """The options before the first word that is none, as wrappers have them, and the words from there on."""
        takes = {name for action in self._parser._actions if action.nargs != 0 for name in action.option_strings}
        end = 0
        while end < len(words) and words[end].text.startswith("-"):
            name, equals, _ = words[end].text.partition("=")
            takes_one = not equals and (
                name in takes or any(known.startswith(name) for known in takes if name[:2] == "--")
            )
            end += 2 if takes_one else 1
        findings = Findings()
        held = self.read(words[:end], findings)
        if findings.wrong:
            raise UsageError(str(findings.wrong[0]))
        return held, list(words[end:])


def place(words: Sequence[Word], flag: str) -> str:
    """Where `flag` stands, however it is written."""
    bare = flag.lstrip("-").replace("_", "-")
    for word in words:
        said = word.text.partition("=")[0].lstrip("-").replace("_", "-")
        if word.text == flag or (said and (said == bare or (len(said) > 1 and bare.startswith(said)))):
            return word.where
    return words[0].where if words else COMMAND_LINE
