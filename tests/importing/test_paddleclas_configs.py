"""Real YAMLs of PaddleClas, where a folder of them is: each becomes a recipe, or says why not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from paddleclas_configs import outcomes

FOLDER = "SHOAL_TEST_PADDLECLAS"


def test_each_becomes_a_recipe_or_says_why_not():
    if not os.environ.get(FOLDER):
        pytest.skip(f"no YAMLs of PaddleClas ({FOLDER} names a folder of them: ppcls/configs/ImageNet)")
    found = outcomes(Path(os.environ[FOLDER]))
    assert found, f"{FOLDER}: no .yaml below it"
    assert all(one.runnable or one.reasons for one in found)
    assert sum(one.runnable for one in found) > len(found) / 2
