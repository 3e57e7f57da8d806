"""A folder of PaddleClas's YAMLs, each imported: which become recipes, and which not, for what reasons.

python tests/importing/paddleclas_configs.py FOLDER        prints the table of docs/measured.md
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from shoal.base.errors import UsageError
from shoal.importing.findings import Findings
from shoal.importing.recognise import read
from shoal.recipe.load import parse


class Outcome(NamedTuple):
    """runnable: the recipe is valid, and its model known. reasons: what is lacking or wrong; left: what is left out."""

    name: str
    runnable: bool
    reasons: list[str]
    left: list[str]


def outcome(file: Path) -> Outcome:
    findings = Findings()
    try:
        draft = read([str(file)], None, 4, findings)
    except UsageError as error:
        return Outcome(file.stem, False, [str(error)], [])
    reasons = [f"{one.what}: {one.why}" for one in (*findings.lacking, *findings.wrong)]
    if not reasons:
        parse(draft.text([]), f"{file.stem}.yaml")
    return Outcome(file.stem, not reasons, reasons, [one.what for one in findings.left])


def outcomes(folder: Path) -> list[Outcome]:
    return [outcome(file) for file in sorted(folder.rglob("*.yaml"))]


if __name__ == "__main__":
    found = outcomes(Path(sys.argv[1]))
    runnable = [one for one in found if one.runnable]
    whole, lost = sum(not one.left for one in runnable), len(found) - len(runnable)
    print(f"{len(found)} files: {len(runnable)} become recipes ({whole} with nothing left out), {lost} do not")
    kinds = Counter(
        kind
        for one in runnable
        for kind in {"arguments of the net" if what.startswith("Arch.") else what.split()[0] for what in one.left}
    )
    print("left out, in how many:", ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()))
    for one in found:
        if not one.runnable:
            print(f"| {one.name} | {'; '.join(reason.split(' (known:')[0] for reason in one.reasons[:2])} |")
