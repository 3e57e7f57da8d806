"""What the contracts of all seams need: every part of a seam, made with as few options as it can do with."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from shoal.recipe.check import Fault, build
from shoal.recipe.part import SEAMS, kinds

MINIMAL: dict[tuple[str, str], dict[str, Any]] = {
    ("schedules", "multistep"): {"at": ["3ep", "6ep"]},
    ("schedules", "step"): {"every": "3ep"},
    ("optims", "timm"): {"opt": "lamb"},
    ("sources", "synthetic"): {"images": 60, "size": 8},
    ("tasks", "distill"): {"teacher": {"run": "runs/teacher"}},
}
"""(seam, name) -> options, as a recipe would write them, for parts whose defaults are none or too large for a test."""


def parts(seam: str) -> list[str]:
    return list(kinds(seam))


def minimal(seam: str, name: str, **options: Any) -> Any:
    """The part; the test is skipped when it wants options that nobody has told here."""
    kind = kinds(seam)[name]
    given = {"name": name, **MINIMAL.get((seam, name), {}), **options}
    missing = [field.name for field in msgspec.structs.fields(kind) if field.required and field.name not in given]
    if missing:
        pytest.skip(f"{seam}/{name} needs {', '.join(missing)}; tell some in MINIMAL of {__file__}")
    faults: list[Fault] = []
    part = build(kind, given, (), faults)
    assert not faults
    return part


def assert_torch_free(seam: str, name: str) -> None:
    """Recipes are checked and plans printed without torch: a part's file must not import it."""
    module = f"{SEAMS[seam]}.{name.replace('-', '_')}"
    code = f"import sys, {module}; sys.exit('imports torch' if 'torch' in sys.modules else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
