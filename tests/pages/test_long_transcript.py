"""A sequence of thousands of tokens is shown like a short one, without slowing the browser."""

from __future__ import annotations

import numpy as np
import pytest

import rcdiag
from tests.builders import write_table
from tests.pages.browser import visit

pytestmark = pytest.mark.browser
LENGTH = 6000
# Moving in the reader must not redraw the text or its map.
COUNT = """() => {
    window.changed = 0
    const watch = new MutationObserver(all => { window.changed += all.length })
    for (const part of [".reading .tokens", ".minimap"])
        watch.observe(document.querySelector(part), { childList: true, subtree: true })
}"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    random = np.random.default_rng(0)
    old = [-random.exponential(0.5, LENGTH) for _ in range(4)]
    rollout = [np.minimum(row + random.normal(0.0, 0.1, LENGTH), 0.0) for row in old]
    write_table(
        folder / "long.parquet",
        response_ids=random.integers(0, 900, (4, LENGTH)).tolist(),
        rollout_log_probs=[row.tolist() for row in rollout],
        old_log_probs=[row.tolist() for row in old],
    )
    result = rcdiag.score(folder / "long.parquet", sequences=[2])
    rcdiag.report(result, folder / "page.html")
    return result, folder / "page.html"


@pytest.fixture
def seen(browser, made):
    opened = visit(browser, made[1], viewport={"width": 1280, "height": 900})
    opened.go("tokens/2/3000")
    yield opened
    assert opened.complaints == []
    opened.close()


def test_all_tokens_are_in_parts_that_are_laid_out_when_visible(seen, made):
    whole = next(one for one in made[0].readable_sequences if one.row == 2)
    assert len(whole.token_ids) == LENGTH
    shown = seen.page.locator(".reading .tokens").text_content().split()
    assert [int(one) for one in shown] == whole.token_ids
    parts = seen.page.locator(".tokens .part")
    assert parts.count() == LENGTH // 400
    assert parts.first.evaluate("part => getComputedStyle(part).contentVisibility") == "auto"


def test_the_map_has_a_few_shapes_and_moving_redraws_nothing(seen):
    assert seen.page.locator(".minimap > *").count() <= 5
    seen.page.evaluate(COUNT)
    before = float(seen.page.locator(".map-at").get_attribute("x"))
    seen.page.locator(".reading .tokens").focus()
    for _ in range(20):
        seen.page.keyboard.press("ArrowRight")
    assert float(seen.page.locator(".map-at").get_attribute("x")) > before
    assert seen.page.evaluate("location.hash") == "#tokens/2/3020"
    assert seen.page.evaluate("window.changed") == 0


def test_a_token_out_of_view_is_scrolled_to(seen):
    seen.page.locator(".reading .tokens").focus()
    for key, position in (("End", LENGTH - 1), ("Home", 0)):
        seen.page.keyboard.press(key)
        assert seen.page.evaluate("location.hash") == f"#tokens/2/{position}"
        seen.page.wait_for_function(
            """() => {
            const box = document.querySelector(".reading .tokens").getBoundingClientRect()
            const token = document.querySelector(".tokens .at").getBoundingClientRect()
            return token.top >= box.top && token.bottom <= box.bottom
        }"""
        )
