"""The reader of sequences: its colours, its panel, its keys, its order, its addresses."""

from __future__ import annotations

import math

import pytest

from rcdiag.pages.formats import number
from rcdiag.results import ScoreResult
from tests.pages.browser import visit
from tests.pages.makers import MAKERS

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def result() -> ScoreResult:
    made = MAKERS["score-turns"]()
    assert isinstance(made, ScoreResult)
    return made


@pytest.fixture
def seen(browser, rendered):
    opened = visit(browser, rendered("score-turns"), viewport={"width": 1280, "height": 900})
    opened.go("tokens")
    opened.page.locator(".tokens .at").wait_for()
    yield opened
    assert opened.complaints == []
    opened.page.context.close()


def fact(seen, name: str) -> str:
    facts = seen.page.locator(".token dt", has_text=name)
    return facts.first.locator("xpath=following-sibling::dd[1]").inner_text()


def test_it_opens_the_first_sequence_at_its_worst_token(seen, result):
    first = result.worst_sequences[0]
    worst = max(first.log_ratio, key=abs)
    place = first.log_ratio.index(worst)
    assert fact(seen, "row") == str(first.row)
    assert fact(seen, "position") == str(first.positions[place])
    assert float(fact(seen, "log-ratio")) == pytest.approx(worst, rel=0.01)
    assert "".join(first.texts) == seen.page.locator(".reading .tokens").text_content()


def test_the_panel_has_both_probabilities_and_the_sum_so_far(seen, result):
    first = result.worst_sequences[0]
    place = first.positions.index(int(fact(seen, "position")))
    behavior = first.behavior_log_probs[place]
    assert fact(seen, f"probability, {result.behavior}") == number(math.exp(behavior))
    target = math.exp(behavior + first.log_ratio[place])
    assert float(fact(seen, f"probability, {result.target}")) == pytest.approx(target, rel=0.01)
    total = sum(first.log_ratio[: place + 1])
    assert float(fact(seen, "sum so far")) == pytest.approx(total, rel=0.01)


def test_arrow_keys_go_from_token_to_token_and_the_address_follows(seen, result):
    first = result.worst_sequences[0]
    before = int(fact(seen, "position"))
    seen.page.locator(".reading .tokens").focus()
    seen.page.keyboard.press("ArrowLeft")
    after = first.positions[first.positions.index(before) - 1]
    assert fact(seen, "position") == str(after)
    assert seen.page.evaluate("location.hash") == f"#tokens/{first.row}/{after}"


def test_an_address_leads_to_a_token(browser, rendered, result):
    other = result.worst_sequences[3]
    opened = visit(browser, rendered("score-turns"), viewport={"width": 390, "height": 900})
    opened.go(f"tokens/{other.row}/{other.positions[2]}")
    opened.page.wait_for_function(
        "row => document.querySelector('.sequences [aria-current]')?.dataset.row === row",
        arg=str(other.row),
    )
    assert fact(opened, "position") == str(other.positions[2])
    opened.page.context.close()


def test_another_order_opens_another_sequence(seen, result):
    seen.page.locator("select.order").select_option("token")
    worst = max(result.worst_sequences, key=lambda item: max(map(abs, item.log_ratio)))
    assert fact(seen, "row") == str(worst.row)
    buttons = seen.page.locator(".sequences button")
    assert buttons.count() == len(result.worst_sequences)


def test_a_click_on_a_token_shows_it(seen, result):
    span = seen.page.locator(".reading .tokens span").nth(1)
    span.click()
    assert fact(seen, "position") == str(result.worst_sequences[0].positions[1])
