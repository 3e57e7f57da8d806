"""The page: whole in one file, true of every state of a run, and harmless whatever names it is given."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from a_training import END, EPOCH, SAVE, START, TRAIN, VAL, judged, reported

from shoal.base.errors import ShoalError, UsageError
from shoal.base.run import Run
from shoal.report.page import page, write
from shoal.report.predictions import Predictions
from shoal.report.reading import Reading
from shoal.report.sinks import Event

FULL = (START, TRAIN, EPOCH, VAL, SAVE, END)
VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """Elements by name, with their attributes; AssertionError where tags do not close each other."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def made(*runs: Run) -> Page:
    return Page(page([Reading.of(run) for run in runs]))


def test_a_finished_run_has_every_section(tmp_path: Path) -> None:
    run = judged(tmp_path, *FULL)
    run.environment.write_text(json.dumps({"torch": "2.15.0", "cpu": "a cpu"}))
    found = made(run)
    ids = [attributes["id"] for _, attributes in found.found if "id" in attributes]
    assert len(ids) == len(set(ids)), "an id may come once"
    assert {"curves", "time", "classes", "confusion", "worst", "surest", "recipe", "environment"} <= set(ids)
    targets = {attributes["href"] for attributes in found.named("a")}
    assert targets <= {f"#{one}" for one in ids} and "#worst" in targets
    assert all(image["alt"] for image in found.named("img"))
    for text in ("97.5 %", "n = 359", "images/s", "2.15.0", "dog <b>, taken for ship", "digits-cnn"):
        assert text in found.text, text


def test_a_loss_scale_has_a_chart_where_there_is_one(tmp_path: Path) -> None:
    scales = [{**TRAIN, "step": step, "loss_scale": scale} for step, scale in ((10, 65536.0), (20, 1024.0))]
    html = page([Reading.of(judged(tmp_path / "scaled", START, *scales, VAL, SAVE, {**END, "skipped": 6}))])
    assert "Loss scale over epochs" in html and "6 steps were skipped" in html
    assert "Loss scale" not in page([Reading.of(judged(tmp_path / "plain", *FULL))])


def test_the_page_asks_nobody_for_anything(tmp_path: Path) -> None:
    html = page([Reading.of(judged(tmp_path, *FULL))])
    assert not re.search(r"""(src|href)=["']?(https?:)?//|url\(|@import""", html)
    sources = [image["src"] or "" for image in Page(html).named("img")]
    assert sources and all(source.startswith("data:image/") for source in sources)
    assert "<script" not in html and "default-src 'none'" in html


def test_names_of_others_cannot_break_out(tmp_path: Path) -> None:
    evil = '"><script>alert(1)</script>'
    run = judged(tmp_path, START | {"recipe": evil, "model": evil, "why": [evil]}, TRAIN, VAL, END,
                 {"event": "note", "step": 1, "level": "info", "text": evil})  # fmt: skip
    held = Predictions.read(run.predictions(23))
    named = Predictions((evil, "b", "c"), held.labels, held.guesses, held.probabilities, held.label_probabilities,
                        held.shown, held.pictures)  # fmt: skip
    run.predictions(23).write_bytes(named.to_bytes())
    run.recipe.write_text(f"# {evil}\n")
    html = page([Reading.of(run), Reading.of(run)])
    assert "<script" not in html
    assert Page(html).text.count(evil) > 8


@pytest.mark.parametrize("events", [(), (START,), (START, TRAIN), (START, TRAIN, VAL), FULL], ids=len)
def test_half_written_runs(tmp_path: Path, events: tuple[Event, ...]) -> None:
    run = reported(tmp_path, *events)
    run.recipe.write_text("data: digits\n")
    with run.metrics_file.open("ab") as file:
        file.write(b'{"event": "tra')
    found = made(run)
    assert len(found.named("h1")) == 1
    if START in events:
        assert "Not known for single images: no checkpoint is marked as the best yet." in found.text
    run.write_best(23, 0.97)
    run.predictions(23).parent.mkdir(parents=True)
    run.predictions(23).write_bytes(b"PK\x03\x04 cut")
    if START in events:
        assert "damaged predictions" in made(run).text


def test_figures_that_are_no_numbers(tmp_path: Path) -> None:
    nothing: Event = dict.fromkeys(("loss", "images_per_s", "wait_share", "lr", "top5", "seconds"))
    events = [event | {key: None for key in nothing if key in event} for event in FULL[1:]]
    events[2]["top5"] = 1.0
    assert "97.5 %" in made(judged(tmp_path, START, *events)).text


def test_a_damaged_line_and_what_is_no_run_are_told(tmp_path: Path) -> None:
    run = judged(tmp_path / "a", *FULL)
    run.metrics_file.write_text(run.metrics_file.read_text().replace("digits-cnn", 'digits"', 1))
    with pytest.raises(ShoalError, match=r"metrics\.jsonl:1: not a JSON line"):
        write([run])
    assert not run.report.exists()
    with pytest.raises(UsageError, match="b: no such folder; to find runs: shoal list runs"):
        write([Run(tmp_path / "b")])


def test_several_side_by_side(tmp_path: Path) -> None:
    one = judged(tmp_path / "one", *FULL)
    other = judged(tmp_path / "deep" / "one", START, TRAIN, VAL | {"top1": 0.5, "correct1": 180}, END)
    other.recipe.write_text(other.recipe.read_text().replace("seed: 0", "seed: 5"))
    found = made(one, other)
    ids = [attributes["id"] for _, attributes in found.found if "id" in attributes]
    assert len(ids) == len(set(ids)) and {"compared", "differences", "classes", "r1-worst", "r2-curves"} <= set(ids)
    assert "one (1)" in found.text and "one (2)" in found.text
    assert re.search(r"seed\s*0\s*5", found.text)
    assert write([one, other], tmp_path / "both.html").stat().st_size < 200_000
    assert not one.report.exists()


def test_two_at_once_leave_one_whole_page(tmp_path: Path) -> None:
    run = judged(tmp_path, *FULL)
    command = [sys.executable, "-m", "shoal", "report", str(run.folder)]
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: subprocess.run(command, capture_output=True), range(2)))
    assert [done.returncode for done in both] == [0, 0], both
    assert [done.stdout.decode() for done in both] == [f"{run.report}\n"] * 2
    Page(run.report.read_text())
    assert not [path for path in os.listdir(run.folder) if path.endswith(".aside")]


def test_a_thousand_classes_and_many_lines_stay_small(tmp_path: Path) -> None:
    n, images, rng = 1000, 5000, np.random.default_rng(0)
    run = judged(tmp_path, START, VAL)
    line = json.dumps(TRAIN)
    with run.metrics_file.open("a") as file:
        file.writelines(f"{line.replace(': 1280', f': {number}')}\n" for number in range(20_000))
        file.write(json.dumps(END) + "\n")
    labels = (np.arange(images) % n).astype(np.int32)
    guesses = np.where(rng.random(images) < 0.7, labels, rng.integers(0, n, images)).astype(np.int32)
    sure = rng.random((images, 1)).astype(np.float32)
    large = Predictions(tuple(f"class {i}" for i in range(n)), labels, guesses[:, None], sure, sure[:, 0])
    run.predictions(23).write_bytes(large.to_bytes())
    path = write([run])
    assert path.stat().st_size < 1_000_000
    text = Page(path.read_text()).text
    assert "Each point is the mean of up to 100 reports" in text and "All 1,000 classes" in text


def test_making_a_page_needs_neither_torch_nor_matplotlib(tmp_path: Path) -> None:
    run = judged(tmp_path, *FULL)
    code = f"""
import sys
from pathlib import Path
from shoal.base.run import Run
from shoal.report import page, runs, terminal
page.write([Run(Path({str(run.folder)!r}))])
terminal.told(Run(Path({str(run.folder)!r})))
list(runs.rows(runs.find(Path({str(run.folder)!r}))))
print({{"torch", "matplotlib", "tensorboard", "timm"}} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
