"""The page in a real browser: nothing said in its console, nothing wider than a phone, all of it reached by keyboard,
legible in both themes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from a_training import END, EPOCH, SAVE, START, TRAIN, VAL, judged
from chromium import PROGRAM, Chromium

from shoal.base.run import Run
from shoal.report.page import write

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on PATH (Debian: apt-get install chromium)")

TAB, MOST_TABS = 9, 200
LONG = "a_class_whose_name_is_much_longer_than_a_phone_is_wide_" * 2

CONTRASTS = """
(() => {
  const read = text => { const found = text.match(/[\\d.]+/g).map(Number);
    const scale = text.startsWith('color(') ? 255 : 1;
    return [found[0] * scale, found[1] * scale, found[2] * scale, found.length > 3 ? found[3] : 1]; };
  const over = (top, low) => [0, 1, 2].map(i => top[i] * top[3] + low[i] * (1 - top[3])).concat([1]);
  const light = color => { const [r, g, b] = color.map(v => v / 255).map(
      v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = element => { const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(read(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((low, top) => over(top, low), [255, 255, 255, 1]); };
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.getClientRects().length) continue;
    const style = getComputedStyle(element), back = behind(element);
    const ink = over(read(element.closest('svg') ? style.fill : style.color), back);
    const [a, b] = [light(ink), light(back)].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push(`${element.tagName} ${element.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  for (const line of document.querySelectorAll('svg .line')) {
    const drawn = light(read(getComputedStyle(line).stroke)), page = light(behind(line.closest('figure')));
    const ratio = (Math.max(drawn, page) + 0.05) / (Math.min(drawn, page) + 0.05);
    if (ratio < 3) found.push(`a line: ${ratio.toFixed(2)}`);
  }
  return found;
})()
"""
WIDE = """
[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 0.5
  && !e.closest('.scroll') && !e.closest('.skip')).map(e => e.tagName + '.' + e.getAttribute('class'))
"""
REACHABLE = "[...document.querySelectorAll('a[href], summary, [tabindex]')].filter(e => e.checkVisibility()).length"
SCROLLERS = """
[...document.querySelectorAll('body *')].filter(
  e => (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1)
    && /auto|scroll/.test(getComputedStyle(e).overflow) && (e.tabIndex < 0 || !e.ariaLabel)).length
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium") / "profile") as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("pages")
    full = (START | {"recipe": LONG}, TRAIN, TRAIN | {"images": 1400, "loss": 1.0}, EPOCH, VAL, SAVE, END)
    one, other = judged(base / "one", *full), judged(base / LONG, *full)
    dead = Run(base / "dead")
    dead.log("worker", 0).parent.mkdir(parents=True)
    dead.log("worker", 0).write_text(f"ERROR: {LONG}\n")
    dead.recipe.write_text(f"# {LONG}\n")
    return {
        "one": write([one]),
        "several": write([one, other, other], base / "several.html"),
        "dead": write([dead]),
    }


@pytest.mark.parametrize("name", ["one", "several", "dead"])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_said_and_nothing_sticks_out(
    browser: Chromium, pages: dict[str, Path], name: str, width: int
) -> None:
    browser.open(pages[name], width=width)
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") == width, browser.evaluate(WIDE)
    assert browser.evaluate(WIDE) == []
    assert browser.evaluate("[...document.images].filter(i => !i.complete || !i.naturalWidth || !i.alt).length") == 0
    assert browser.said == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_text_can_be_read_in_both_themes(browser: Chromium, pages: dict[str, Path], dark: bool) -> None:
    for name, page in pages.items():
        browser.open(page, width=1280, dark=dark)
        browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        back = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(255, 255, 255)") != dark
        assert browser.evaluate(CONTRASTS) == [], name


def test_a_keyboard_reaches_everything_that_opens_leads_or_scrolls(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["one"], width=360)
    assert browser.evaluate(SCROLLERS) == 0, "what scrolls must be reachable, and say what it is"
    wanted, seen = browser.evaluate(REACHABLE), set()
    for _ in range(MOST_TABS):
        browser.press("Tab", TAB)
        at = browser.evaluate(
            "(e => e === document.body ? '' : [...document.querySelectorAll('*')].indexOf(e))(document.activeElement)"
        )
        if at == "" or at in seen:
            break
        seen.add(at)
        assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert len(seen) == wanted > 10


def test_it_prints_black_on_white_whole(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["one"], width=1280, dark=True)
    browser.call("Emulation.setEmulatedMedia", media="print",
                 features=[{"name": "prefers-color-scheme", "value": "dark"}])  # fmt: skip
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("getComputedStyle(document.querySelector('.scroll')).overflow") == "visible"
    browser.call("Emulation.setEmulatedMedia", media="", features=[])
