"""Every page, light and dark, wide and narrow: no requests, no overflow, accessible."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from rcdiag.pages.page import page
from tests.pages.browser import Visit, visit
from tests.pages.makers import MAKERS, compared, scored, swept_all

pytestmark = pytest.mark.browser

# Chart texts that extend beyond their drawing.
CUT = """() => [...document.querySelectorAll('.drawing svg text')].filter(text => {
    const inner = text.getBoundingClientRect()
    const outer = text.closest('figure, .sliders, .pair').getBoundingClientRect()
    return inner.width && (inner.left < outer.left - 2 || inner.right > outer.right + 2)
}).map(text => text.textContent)"""
# Text smaller than 11 pixels.
SMALL = """() => [...document.querySelectorAll('body *')].filter(each =>
    each.checkVisibility() && [...each.childNodes].some(node => node.nodeType === 3
        && node.textContent.trim()) && parseFloat(getComputedStyle(each).fontSize) < 11
).map(each => each.outerHTML.slice(0, 80))"""
TALL = """() => [...document.querySelectorAll('tbody tr:not(.detail) > *')].filter(cell =>
    cell.checkVisibility()
    && cell.clientHeight > 6.4 * parseFloat(getComputedStyle(cell).lineHeight)
).map(cell => cell.textContent.slice(0, 60))"""
# Elements whose content is taller than themselves.
RUNS_OVER = """() => [...document.querySelectorAll('main section, main .values, main .wide')]
    .filter(each => each.clientHeight && each.scrollHeight > each.clientHeight + 8)
    .map(each => each.outerHTML.slice(0, 90))"""
DRAWN = """() => [...document.querySelectorAll('.tab.on figure:not([hidden]) .drawing')]
    .every(place => place.querySelector('svg'))"""


@dataclass(frozen=True)
class Look:
    """How a tab looks: pixels that it is too wide, folded and unfolded, and faulty parts."""

    too_wide: tuple[int, int]
    figures: int
    cut: list[str]
    small: list[str]
    tall: list[str]


@pytest.fixture(scope="module")
def looks(seen) -> dict[str, Look]:
    """Every tab of the page, drawn and unfolded."""

    def look(tab: str) -> Look:
        seen.go(tab)
        folded = seen.overflow
        seen.unfold()
        seen.page.wait_for_function(DRAWN)
        figures = seen.page.locator(".tab.on figure:visible").count()
        found = (seen.page.evaluate(script) for script in (CUT, SMALL, TALL))
        return Look((folded, seen.overflow), figures, *found)

    return {tab: look(tab) for tab in seen.tabs()}


def test_it_makes_no_requests_and_logs_no_errors(seen, looks):
    assert looks
    assert seen.requests == []
    assert seen.complaints == []


def test_nothing_scrolls_sideways(looks):
    assert {tab: look.too_wide for tab, look in looks.items() if max(look.too_wide) > 0} == {}


def test_every_figure_is_drawn_and_no_label_is_cut(looks):
    assert sum(look.figures for look in looks.values()) > 0
    assert {tab: look.cut for tab, look in looks.items() if look.cut} == {}


def test_nothing_is_smaller_than_eleven_pixels(looks):
    assert {tab: look.small for tab, look in looks.items() if look.small} == {}


def test_no_cell_is_taller_than_six_lines(seen, looks):
    if "hostile" in seen.address:  # its names have hundreds of letters and no space
        return
    assert {tab: look.tall for tab, look in looks.items() if look.tall} == {}


def test_the_colour_scheme_is_applied(seen, window):
    scheme, _ = window
    paper = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]


def _inaccessible(seen: Visit) -> list[str]:
    """Return axe's violations in all tabs."""
    seen.leave_rows_alike_out()
    for tab in seen.tabs():
        seen.go(tab)
    seen.unfold()
    seen.show_all()
    problems = seen.inaccessible()
    seen.close()
    return problems


def test_axe_finds_nothing_on_any_tab(browser, file):
    window = {"width": 1280, "height": 900}
    assert _inaccessible(visit(browser, file, color_scheme="light", viewport=window)) == []


def test_axe_finds_nothing_in_the_dark_on_a_phone(browser, file):
    window = {"width": 390, "height": 900}
    assert _inaccessible(visit(browser, file, color_scheme="dark", viewport=window)) == []


def test_without_scripts_all_tabs_are_shown_below_each_other(browser, file):
    seen = visit(browser, file, java_script_enabled=False)
    for tab in seen.page.locator(".tab").all():
        assert tab.is_visible()
    for table in seen.page.locator("main table").all()[:1]:  # diagnose alone has none
        assert table.is_visible()
        assert any(item.isdigit() for item in table.inner_text())
    assert any(item.isdigit() for item in seen.page.locator("main").inner_text())
    assert not seen.page.locator(".js:visible").count()
    seen.close()


def test_without_scripts_the_page_says_how_to_get_figures(browser, rendered):
    seen = visit(browser, rendered("whole"), java_script_enabled=False)
    assert seen.page.locator("noscript p", has_text="--plots DIR").is_visible()
    seen.close()


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> Path:
    name = "stale.parquet"
    known = scored(name, text=True), swept_all(name), compared(name), MAKERS["replay-model"]()
    file = tmp_path_factory.mktemp("printed") / "page.html"
    file.write_text(page(known))
    return file


@pytest.mark.parametrize("opened", [(), ("ladder", "update", "diagnosis")])
def test_it_prints_on_eight_pages_or_fewer(browser, printed, tmp_path, opened):
    """With all results of one pair and updates of a model, whatever was open before."""
    seen = visit(browser, printed, color_scheme="dark")
    for tab in opened:
        seen.go(tab)
    written = seen.page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert 2 <= written.count(b"/Type /Page\n") + written.count(b"/Type /Page/") <= 8
    seen.close()


PAINTED = """() => [...document.querySelectorAll('.key i, .legend span')]
    .filter(each => each.checkVisibility())
    .map(each => getComputedStyle(each).printColorAdjust)"""


def test_legends_keep_their_colours_on_paper(browser, rendered):
    seen = visit(browser, rendered("whole"), viewport={"width": 718, "height": 1046})
    seen.go("tokens")
    seen.page.emulate_media(media="print")
    painted = seen.page.evaluate(PAINTED)
    assert len(painted) > 4
    assert set(painted) == {"exact"}
    seen.close()


def test_heads_of_tables_hold_no_button_on_paper(browser, rendered):
    """Chromium repeats the head of a table that goes on on the next sheet, but not with buttons."""
    seen = visit(browser, rendered("whole"), viewport={"width": 718, "height": 1046})
    for tab in seen.tabs():
        seen.go(tab)
    seen.go("corrections")
    boxes = "[...document.querySelectorAll('thead button')].map(one => one.getClientRects().length)"
    assert sum(seen.page.evaluate(boxes)) > 0
    seen.page.emulate_media(media="print")
    assert sum(seen.page.evaluate(boxes)) == 0
    seen.close()


def test_nothing_overlaps_on_paper(browser, rendered):
    """Parts that scroll on the screen do not overlap the parts below them."""
    seen = visit(browser, rendered("whole"), viewport={"width": 718, "height": 1046})
    for tab in seen.tabs():
        seen.go(tab)
    seen.go("tokens")
    seen.page.locator("#tokens figure button", has_text="values").first.click()
    seen.page.emulate_media(media="print")
    assert seen.page.evaluate(RUNS_OVER) == []
    assert "the numbers of each pair" in seen.page.locator("p.printed").inner_text()
    seen.close()
