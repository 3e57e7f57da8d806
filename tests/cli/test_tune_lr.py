"""`shoal tune lr` names only what it has made."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from click.testing import CliRunner

from shoal.cli.tune import command
from shoal.report.rates import Curve, Rates


def test_no_picture_is_named_where_none_was_drawn(tmp_path: Path) -> None:
    path = tmp_path / "lr.png"
    with patch("shoal.train.sweep.sweep", lambda *_: Rates((Curve(0, (0.1, 1.0), ()),))):
        result = CliRunner().invoke(command, ["lr", "digits", "--picture", str(path)])
    assert result.exception is None and not path.exists()
    assert "the loss is not finite before the first step" in result.output and "picture" not in result.output
