"""Names, paths and texts are shown as text, whatever is in them."""

from __future__ import annotations

import pytest
from msgspec import structs

import rcdiag
from rcdiag.table.opening import open_table
from rcdiag.usecases.score import score
from tests.builders import ids_like, write_table
from tests.pages.browser import visit
from tests.pages.hostile import EVIL, FIRST, LONG, THIRD
from tests.pages.test_every_page import TALL

pytestmark = pytest.mark.browser


@pytest.fixture(params=["hostile-score", "hostile-compare"])
def seen(request, browser, rendered):
    opened = visit(browser, rendered(request.param), viewport={"width": 1280, "height": 900})
    yield opened
    opened.close()


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


def test_an_injected_script_would_not_run(browser, rendered, tmp_path):
    path = tmp_path / "page.html"
    page = rendered("hostile-score").read_text()
    path.write_text(page.replace("</main>", "<script>window.hacked=1</script></main>"))
    seen = visit(browser, path)
    assert seen.page.evaluate("typeof window.hacked") == "undefined"
    assert any("Content Security Policy" in item for item in seen.complaints)
    seen.close()


TURNING = "\u202egnp.exe\u202c \u2067x\u2069"
FLOOD = "y" * 10_000


def test_long_and_right_to_left_text_stays_in_its_element(browser, tmp_path):
    """Every text has a token of 10,000 letters and a right-to-left override."""
    path = tmp_path / f"{TURNING}.parquet"
    write_table(
        path,
        response_ids=ids_like(FIRST),
        rollout_log_probs=THIRD,
        old_log_probs=[[value - 0.3 for value in row] for row in THIRD],
        sample_id=[FLOOD, TURNING, f"{TURNING}{FLOOD}", "\x1b[31mred"],
    )
    result = score(
        open_table(path), decode=lambda ids: [(FLOOD, TURNING, "\x1b[31m")[i % 3] for i in ids]
    )
    facts = {name: {"model": f"{FLOOD}{name}", "backend": TURNING} for name in ("rollout", "old")}
    rcdiag.report(structs.replace(result, scoring=facts), tmp_path / "page.html")
    opened = visit(browser, tmp_path / "page.html", viewport={"width": 390, "height": 900})
    for tab in opened.tabs():
        opened.go(tab)
        shown = opened.page.evaluate("document.querySelector('.tab.on').innerText")
        assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\x1b")
        assert opened.page.evaluate(TALL) == [], tab
        assert opened.overflow <= 0
    assert not set(opened.page.title()) & set("\u202e\u2067")
    opened.go("tokens")
    assert opened.page.locator(".token-facts").bounding_box()["height"] < 900
    assert opened.complaints == []
    opened.close()
