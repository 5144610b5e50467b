"""Names, paths and texts are shown as text, whatever is in them."""

from __future__ import annotations

import pytest

from tests.pages.browser import visit
from tests.pages.hostile import EVIL, LONG

pytestmark = pytest.mark.browser


@pytest.fixture(params=["hostile-score", "hostile-compare"])
def seen(request, browser, rendered):
    opened = visit(browser, rendered(request.param), viewport={"width": 1280, "height": 900})
    yield opened
    opened.page.context.close()


def test_no_name_becomes_an_element_or_a_script(seen):
    for tab in seen.tabs():
        seen.go(tab)
        seen.unfold()
    for opens in seen.page.locator("tr[data-open] .toggle").all()[:3]:
        opens.evaluate("each => each.click()")
    for drawing in seen.page.locator(".drawing svg.opens").all()[:2]:
        seen.go("tokens")
        drawing.focus()
        for key in ("ArrowRight", "Enter"):
            seen.page.keyboard.press(key)
    assert seen.page.evaluate("typeof window.hacked") == "undefined"
    assert seen.page.locator("img:not(svg *)").count() == 0
    assert seen.page.locator("script:not([type])").count() == 1
    assert seen.page.locator("style:not(svg *)").count() == 1
    assert seen.page.locator("main").is_visible()
    assert seen.complaints == []


def test_names_are_shown_whole(seen):
    assert EVIL in seen.page.locator(".facts").inner_text()
    assert LONG in seen.page.locator(".facts").inner_text()
    assert EVIL in seen.page.locator(".finding", has_text=LONG).last.inner_text()


def test_a_script_that_did_get_in_would_not_run(browser, rendered, tmp_path):
    path = tmp_path / "page.html"
    page = rendered("hostile-score").read_text()
    path.write_text(page.replace("</main>", "<script>window.hacked=1</script></main>"))
    seen = visit(browser, path)
    assert seen.page.evaluate("typeof window.hacked") == "undefined"
    assert any("Content Security Policy" in item for item in seen.complaints)
    seen.page.context.close()
