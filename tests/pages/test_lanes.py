"""The figure of which weights sampled each row: drawn, pointed at, read as a table, copied."""

from __future__ import annotations

import pytest

from tests.pages.browser import visit

pytestmark = pytest.mark.browser
FIGURE = "figure[data-figure=weights-by-row]"


@pytest.fixture(params=[390, 1280])
def seen(request, browser, rendered):
    opened = visit(browser, rendered("diagnose"), viewport={"width": request.param, "height": 900})
    opened.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.page.locator(f"{FIGURE} svg").wait_for()
    yield opened
    assert opened.complaints == []
    opened.close()


def test_every_checkpoint_has_a_lane_and_every_row_a_position(seen):
    svg = seen.page.locator(f"{FIGURE} svg")
    texts = svg.locator("text").evaluate_all("all => all.map(each => each.textContent)")
    named = [text for text in texts if not text.isdigit()]
    assert named[0] == "rollout"
    assert named[-3:] == ["the trainer's", "step_4", "step_0"]
    assert svg.locator("rect.lane").count() == 3
    assert "row of the table" in texts


def test_the_mouse_reads_the_probabilities_of_a_row(seen):
    svg = seen.page.locator(f"{FIGURE} svg")
    svg.scroll_into_view_if_needed()
    lane = svg.locator("rect.lane").last.bounding_box()
    seen.page.mouse.move(lane["x"] + lane["width"] - 1, lane["y"] + 3)
    tip = seen.page.locator("#tip")
    assert tip.is_visible()
    lines = tip.inner_text().split("\n")
    assert lines[0] == "row 255"  # of 32 rows: the first and the last of the table
    assert "P(step_0): 1" in lines
    assert "explained: yes" in lines


def test_the_keyboard_goes_from_row_to_row(seen):
    svg = seen.page.locator(f"{FIGURE} svg")
    svg.focus()
    svg.press("ArrowRight")
    svg.press("ArrowRight")
    assert seen.page.locator("#tip").inner_text().startswith("row 1\n")


def test_its_values_are_shown_and_copied(seen):
    figure = seen.page.locator(FIGURE)
    figure.get_by_role("button", name="values").click()
    assert figure.locator(".values tbody tr").count() == 32
    figure.get_by_role("button", name="copy data").click()
    copied = seen.page.evaluate("navigator.clipboard.readText()").split("\n")
    heads = copied[0].split("\t")
    assert heads[:2] == ["row", "policy"]
    assert {"P(step_0)", "P(step_4)", "explained"} <= set(heads)
    assert len(copied) == 33


def test_its_letters_are_as_large_as_those_of_other_figures(seen):
    sizes = seen.page.locator(f"{FIGURE} svg text").evaluate_all(
        "all => all.map(each => parseFloat(getComputedStyle(each).fontSize)"
        " * each.ownerSVGElement.getBoundingClientRect().width"
        " / each.ownerSVGElement.viewBox.baseVal.width)"
    )
    assert min(sizes) >= 11.0
