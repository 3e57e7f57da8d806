"""Page: a study as one self-contained HTML file."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from pathlib import Path

from shoal import __version__
from shoal.base.files import write_whole
from shoal.report.page import templates
from shoal.study.grid import Grid
from shoal.study.measured import Row
from shoal.study.study import Study
from shoal.study.words import conclusion, warnings
from shoal.study.write import CAPTION, HEADER, PICTURES, TRAININGS, shown


def write_page(study: Study, grid: Grid, table: Sequence[Row]) -> None:
    """With the pictures that are drawn already; runs are linked, and found as long as the folder stays together."""
    drawn = [name for name in PICTURES if study.picture(name, "svg").exists()]
    page = templates(Path(__file__).parent / "pages").get_template("study.html")
    html = page.render(
        title=" ".join((Path(grid.recipe).name, *grid.overrides)),
        grid=grid,
        conclusion=conclusion(grid, table),
        warnings=warnings(table, grid),
        caption=CAPTION,
        header=HEADER,
        trainings=TRAININGS,
        rows=[(shown(row), row) for row in table],
        pictures=[(PICTURES[name], _uri(study.picture(name, "svg"))) for name in drawn],
        version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M"),
    )
    write_whole(study.page, html)


def _uri(picture: Path) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(picture.read_bytes()).decode()
