"""Touch input, and addresses of missing parts."""

from __future__ import annotations

import pytest

from tests.pages.browser import visit

pytestmark = pytest.mark.browser
PHONE = {"viewport": {"width": 390, "height": 800}, "has_touch": True, "is_mobile": True}


@pytest.fixture
def phone(browser, rendered):
    opened = visit(browser, rendered("whole"), **PHONE)
    yield opened
    assert opened.complaints == []
    opened.close()


@pytest.fixture
def desk(browser, rendered):
    opened = visit(browser, rendered("whole"), viewport={"width": 1280, "height": 900})
    yield opened
    opened.close()


def test_a_touch_shows_the_numbers_of_a_figure_until_the_next(phone):
    phone.go("tokens")
    svg = phone.page.locator("figure[data-figure=concentration] svg")
    svg.scroll_into_view_if_needed()
    svg.tap(position={"x": 250, "y": 40})
    tip = phone.page.locator("#tip")
    assert tip.is_visible()
    assert "share of KL: " in tip.inner_text()
    phone.page.locator("h2:visible").first.tap()
    assert not tip.is_visible()


def test_a_touch_opens_an_explanation_within_the_window_and_closes_it(phone):
    popover = phone.page.locator("#popover")
    phone.page.locator(".gauge .term").first.tap()
    popover.wait_for()
    box = popover.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert box["y"] >= 0
    phone.page.locator("h2:visible").first.tap()
    assert not popover.is_visible()


def test_a_malformed_address_still_shows_a_page(desk):
    for place in ("corrections/%zz", "%", "tokens/%E0%A4%A/1"):
        desk.page.goto("about:blank")
        desk.page.goto(f"{desk.address}#{place}")
        desk.page.locator(".tab.on h2").wait_for()
        assert desk.page.locator(".tab:visible").count() == 1, place
    assert desk.complaints == []


def test_a_row_or_token_that_is_not_on_the_page_is_reported_as_missing(desk):
    missing = desk.page.locator("#tokens .banner[role=status]")
    desk.go("tokens/99999/1")
    missing.wait_for()
    assert missing.inner_text().startswith("The table has no such row: its 256 rows")
    row = desk.page.locator(".sequences button").nth(1).get_attribute("data-row")
    desk.go(f"tokens/{row}/99999")
    desk.page.locator(f".sequences button[data-row='{row}'][aria-current]").wait_for()
    assert missing.inner_text().startswith(f"Row {row} has no sampled token at position 99999")
    desk.go(f"tokens/{row}")
    missing.wait_for(state="hidden")
    assert desk.complaints == []
