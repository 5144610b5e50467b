"""By Tab alone one reaches everything that can be opened or scrolled."""

from __future__ import annotations

import pytest

from tests.pages.browser import visit

pytestmark = pytest.mark.browser

# The elements that the reader may want to open or scroll, each with a number to know it by.
NUMBERED = """() => [...document.querySelectorAll('summary, a[href], input, pre, .wide')]
    .filter(each => each.matches('summary, a[href], input') || each.scrollWidth > each.clientWidth)
    .map((each, index) => { each.dataset.number = index; return index })"""
FOCUSED = "document.activeElement.dataset.number"


def test_tab_reaches_every_fold_link_and_scrollable_region(browser, file):
    seen = visit(browser, file, viewport={"width": 390, "height": 900})
    seen.unfold()
    expected = seen.page.evaluate(NUMBERED)
    reached = set()
    for _ in range(3 * len(expected) + 20):
        seen.page.keyboard.press("Tab")
        reached.add(seen.page.evaluate(FOCUSED))
    assert {str(item) for item in expected} <= reached
    seen.page.context.close()


def test_a_region_scrolls_and_a_fold_opens_by_keys(browser, rendered):
    seen = visit(browser, rendered("score"), viewport={"width": 390, "height": 900})
    region = seen.page.get_by_role("region", name="Presets")
    region.focus()
    seen.page.keyboard.press("ArrowRight")
    seen.page.wait_for_function("each => each.scrollLeft > 0", arg=region.element_handle())
    fold = seen.page.locator("summary", has_text="Evidence").first
    fold.focus()
    seen.page.keyboard.press("Enter")
    assert seen.page.locator("details[open] pre").first.is_visible()
    seen.page.context.close()
