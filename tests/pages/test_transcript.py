"""The reader of sequences: its colours, its panel, its keys, its order, its addresses."""

from __future__ import annotations

import math

import pytest

from rcdiag.formats import number
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
    opened.close()


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
    sampled = seen.page.locator(".reading .tokens [data-place]").all_text_contents()
    assert sampled == first.texts


def test_prompt_and_tool_tokens_are_grey_at_their_positions(seen, result):
    first = result.worst_sequences[0]
    whole = seen.page.locator(".reading .tokens").text_content()
    prompt, _, response = whole.partition("\n")
    assert prompt == "".join(first.context.prompt_texts)
    of_position = dict(zip(first.positions, first.texts, strict=True))
    of_position |= dict(
        zip(first.context.masked_positions, first.context.masked_texts, strict=True)
    )
    assert response == "".join(of_position[position] for position in sorted(of_position))
    greys = seen.page.locator(".reading .tokens .context:not(.prompt)").all_text_contents()
    assert greys == first.context.masked_texts


@pytest.mark.parametrize("name", ["decoupled_token_is", "decoupled_seq_is", "decoupled_geo_rs"])
def test_the_weight_is_that_of_the_chosen_preset(seen, result, name):
    seen.page.locator("select.preset").select_option(name)
    first = result.worst_sequences[0]
    place = first.positions.index(int(fact(seen, "position")))
    ratio = math.exp(first.log_ratio[place])
    config = result.corrections[name].config
    expected = {
        "decoupled_token_is": min(ratio, config.get("rollout_is_threshold", 0)),
        "decoupled_seq_is": min(math.exp(first.log_ratio_sum), 2.0),
        "decoupled_geo_rs": 1.0,
    }[name]
    assert float(fact(seen, "weight")) == pytest.approx(expected, rel=0.01)
    if name == "decoupled_geo_rs":
        low, high = map(float, str(config["rollout_rs_threshold"]).split("_"))
        inside = low <= math.exp(first.log_ratio_sum / first.num_tokens) <= high
        assert fact(seen, "in the loss") == ("yes" if inside else "no, rejected")


def test_other_keys_go_to_the_ends_and_to_the_next_sequence(seen, result):
    first, second = result.worst_sequences[:2]
    seen.page.locator(".reading .tokens").focus()
    seen.page.keyboard.press("End")
    assert fact(seen, "position") == str(first.positions[-1])
    seen.page.keyboard.press("Home")
    assert fact(seen, "position") == str(first.positions[0])
    seen.page.keyboard.press("n")
    assert fact(seen, "row") == str(second.row)
    seen.page.keyboard.press("p")
    assert fact(seen, "row") == str(first.row)


def test_a_click_on_the_minimap_goes_to_a_token_there(seen, result):
    seen.page.locator(".minimap").scroll_into_view_if_needed()
    box = seen.page.locator(".minimap").bounding_box()
    seen.page.mouse.click(box["x"] + box["width"] - 2, box["y"] + 10)
    first = result.worst_sequences[0]
    assert int(fact(seen, "position")) >= first.positions[-3]


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
    opened.close()


def test_another_order_opens_another_sequence(seen, result):
    seen.page.locator("select.order").select_option("token")
    worst = max(result.readable_sequences, key=lambda item: max(map(abs, item.log_ratio)))
    assert fact(seen, "row") == str(worst.row)
    buttons = seen.page.locator(".sequences button")
    assert buttons.count() == len(result.readable_sequences)


def test_a_click_on_a_token_shows_it(seen, result):
    span = seen.page.locator(".reading .tokens [data-place]").nth(1)
    span.click()
    assert fact(seen, "position") == str(result.worst_sequences[0].positions[1])


def test_random_sequences_can_be_listed_first(seen, result):
    seen.page.locator("select.order").select_option("random")
    listed = seen.page.locator(".sequences button").evaluate_all(
        "buttons => buttons.map(button => Number(button.dataset.row))"
    )
    drawn = [sequence.row for sequence in result.drawn_sequences]
    assert drawn
    assert listed[: len(drawn)] == drawn
    assert "drawn at random" in seen.page.locator(".sequences button").first.inner_text()


def test_a_link_to_a_missing_row_names_the_command_that_adds_it(seen, result):
    missing = seen.page.locator("#tokens .banner[role=status]")
    stored = {sequence.row for sequence in result.readable_sequences}
    row = min({*range(result.num_sequences)} - stored)
    seen.go(f"tokens/{row}/2")
    missing.wait_for()
    assert missing.inner_text().startswith(f"Row {row} is not among the sequences")
    assert missing.locator("code").inner_text() == f"rcdiag.score(..., sequences=[{row}])"
    seen.go(f"tokens/{result.worst_sequences[0].row}/99999")
    assert "has no sampled token at position 99999" in missing.inner_text()
    assert missing.locator("code").count() == 0
