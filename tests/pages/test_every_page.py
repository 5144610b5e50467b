"""Every page, light and dark, wide and narrow: quiet, within its window, accessible."""

from __future__ import annotations

import pytest

from tests.pages.browser import visit

pytestmark = pytest.mark.browser

LABELS = "document.querySelectorAll('svg text').length"
# Texts that stand out of the drawing that they are part of, fonts of other machines allowed for.
CUT = """() => [...document.querySelectorAll('svg text')].filter(text => {
    const inner = text.getBoundingClientRect()
    const outer = text.ownerSVGElement.getBoundingClientRect()
    return inner.width && (inner.left < outer.left - 2 || inner.right > outer.right + 2
        || inner.top < outer.top - 2 || inner.bottom > outer.bottom + 2)
}).map(text => text.textContent)"""


def test_it_asks_for_nothing_and_complains_of_nothing(seen):
    assert seen.requests == []
    assert seen.complaints == []


def test_nothing_scrolls_sideways(seen):
    assert seen.overflow <= 0
    seen.unfold()
    assert seen.overflow <= 0


def _inaccessible(browser, file, scheme, width) -> list:
    seen = visit(browser, file, color_scheme=scheme, viewport={"width": width, "height": 900})
    seen.unfold()
    problems = seen.inaccessible()
    seen.page.context.close()
    return problems


def test_axe_finds_nothing(browser, file):
    """It looks at every cell, which takes its time: once, in the light, on a wide screen."""
    assert _inaccessible(browser, file, "light", 1280) == []


def test_axe_finds_nothing_in_the_dark_on_a_phone(browser, file):
    assert _inaccessible(browser, file, "dark", 390) == []


def test_no_label_of_a_figure_is_cut(seen):
    assert seen.page.evaluate(LABELS) > 10
    assert seen.page.evaluate(CUT) == []


def test_the_scheme_is_taken(seen, scheme):
    paper = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]


def test_without_scripts_the_tables_are_there(browser, file):
    seen = visit(browser, file, java_script_enabled=False)
    table = seen.page.locator("main table").first
    assert table.is_visible()
    assert table.locator("tbody tr").count() > 1
    assert any(item.isdigit() for item in table.inner_text())
    seen.page.context.close()
