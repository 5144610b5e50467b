"""Everything that can be opened, read or scrolled is reachable by keyboard."""

from __future__ import annotations

import pytest

from tests.pages.browser import visit

pytestmark = pytest.mark.browser

# Elements that can be opened or scrolled, each with a number as its id.
NUMBERED = """() => [...document.querySelectorAll('summary, a[href], input, button, .drawing svg,'
        + ' pre, .wide, .term[role]')]
    .filter(each => each.checkVisibility())
    .filter(each => !each.matches('.wide, pre') || each.scrollWidth > each.clientWidth)
    .map((each, index) => { each.dataset.number = index; return index })"""
FOCUSED = "document.activeElement.dataset.number"


@pytest.fixture
def seen(browser, rendered):
    opened = visit(browser, rendered("whole"), viewport={"width": 390, "height": 900})
    yield opened
    assert opened.complaints == []
    opened.close()


def test_tab_reaches_everything_of_every_tab(browser, file):
    seen = visit(browser, file, viewport={"width": 390, "height": 900})
    for tab in seen.tabs():
        seen.go(tab)
        seen.page.evaluate("document.activeElement.blur()")
        wanted = seen.page.evaluate(NUMBERED)
        left = {str(item) for item in wanted}
        for _ in range(2 * len(wanted) + 20):
            seen.page.keyboard.press("Tab")
            left.discard(seen.page.evaluate(FOCUSED))
            if not left:
                break
        assert not left, tab
    seen.close()


def test_arrow_keys_move_through_a_figure_and_announce_its_numbers(seen):
    seen.go("tokens")
    figure = seen.page.locator("[data-figure=tokens-beyond-ratio] .drawing svg")
    figure.focus()
    seen.page.keyboard.press("ArrowRight")
    first = seen.page.locator("#said").inner_text()
    assert seen.page.locator("#tip").is_visible()
    assert "|log-ratio|: 0.001" in first
    seen.page.keyboard.press("ArrowRight")
    assert seen.page.locator("#said").inner_text() != first
    seen.page.keyboard.press("Escape")
    assert not seen.page.locator("#tip").is_visible()


def test_a_term_opens_by_enter_and_closes_by_escape(seen):
    term = seen.page.locator("tr[data-key=k3_kl] .term").first
    term.focus()
    seen.page.keyboard.press("Enter")
    popover = seen.page.locator("#popover")
    popover.wait_for()
    assert "E[ratio - 1 - log_ratio]" in popover.inner_text()
    seen.page.keyboard.press("Escape")
    assert not popover.is_visible()
    assert seen.page.evaluate("document.activeElement.textContent") == "k3_kl"


def test_a_row_opens_by_enter_and_its_address_is_kept(seen):
    seen.go("corrections")
    row = seen.page.locator("#corrections tr[data-names~=decoupled_token_is]")
    row.locator(".toggle").focus()
    seen.page.keyboard.press("Enter")
    detail = seen.page.locator("tr.detail")
    detail.wait_for()
    assert "rollout_is_threshold" in detail.inner_text()
    assert seen.page.evaluate("location.hash").startswith("#corrections/")
    seen.page.keyboard.press("Enter")
    assert detail.count() == 0


def test_a_region_scrolls_by_keys(seen):
    seen.go("corrections")
    region = seen.page.get_by_role("region", name="Presets and swept settings")
    region.focus()
    seen.page.keyboard.press("ArrowRight")
    seen.page.wait_for_function("each => each.scrollLeft > 0", arg=region.element_handle())
