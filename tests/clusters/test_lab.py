"""docs/lab.md, command by command, on two real ssh hosts with a handful of made-up images."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from cluster import Hosts
from command import shoal

PAGE = Path(__file__).parents[2] / "docs" / "lab.md"
SMALL = {
    "data.path=cifar10": ["data=synthetic", "data.images=512"],
    "data.limit=10000": [],
    "node1,node2": ["host1,host2"],
    "1,2": ["1"],
    "3": ["1"],
}
"""Words of the page, and what stands in their place here."""


def commands() -> list[list[str]]:
    blocks = re.findall(r"```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


@pytest.mark.slow
def test_every_command_of_the_lab(hosts: Hosts, tmp_path: Path) -> None:
    found = commands()
    assert [words[1] for words in found] == [*["doctor"], *["train"] * 5, "list", "report", "why", "eval", "scale"]
    for words in found:
        there = ["--ssh-config", str(hosts.ssh_config)] if "-H" in words else []
        small = [new for word in words[1:] for new in SMALL.get(word, [word])]
        done = shoal(hosts, *small, *there, cwd=tmp_path)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        if words[1] == "list":
            assert all(f"lab/{name}" in done.stdout for name in ("one", "two", "hosts", "sync", "async")), done.stdout
    assert (tmp_path / "lab" / "compared.html").is_file() and (tmp_path / "lab" / "study" / "report.html").is_file()
