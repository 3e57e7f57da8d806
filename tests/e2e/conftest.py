"""Finished runs that many tests look at; nobody writes into them."""

from __future__ import annotations

from pathlib import Path

import pytest
from figures import RECIPE
from program import Finished, run_shoal
from warm import warm


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "small.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="session")
def reference(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one worker makes of the recipe without any interruption."""
    base = tmp_path_factory.mktemp("reference")
    result = warm(base, "train", recipe, "--run", base / "run")
    assert result.code == 0, result
    return base / "run"


@pytest.fixture(scope="session")
def two(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The same from `shoal train -n 2`, as people start it."""
    base = tmp_path_factory.mktemp("two")
    return Finished(base / "run", run_shoal(base, "train", recipe, "-n", "2", "--run", base / "run"))
