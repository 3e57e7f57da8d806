"""Listing: the image files that paths on a command line mean; torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.base.errors import UsageError, shown_path
from shoal.data.sources.folder import ENDINGS, images_in


def files_at(paths: Sequence[Path]) -> list[str]:
    """Image files: those named, and all below folders that are named. UsageError: a path that is not there, or none."""
    found: list[str] = []
    for path in paths:
        if path.is_dir():
            inside = images_in(path)
            if not inside:
                raise UsageError(f"{shown_path(path)}: holds no images ({', '.join(ENDINGS)})")
            found += inside
        elif path.exists():
            found.append(str(path))
        else:
            raise UsageError(f"{shown_path(path)}: no such file or folder")
    return found
