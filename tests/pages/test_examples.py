"""A click on a bin of a figure lists its tokens, with links to the reader."""

from __future__ import annotations

import math

import pytest

from rcdiag.results import ScoreResult
from tests.pages.browser import visit
from tests.pages.makers import MAKERS

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def result() -> ScoreResult:
    made = MAKERS["score-turns"]()
    assert isinstance(made, ScoreResult)
    return made


@pytest.fixture(params=["light", "dark"])
def seen(request, browser, rendered):
    opened = visit(
        browser,
        rendered("score-turns"),
        viewport={"width": 1280, "height": 900},
        color_scheme=request.param,
    )
    opened.go("tokens")
    yield opened
    assert opened.complaints == []
    opened.close()


def clicked(seen, name: str, across: float, down: float):
    figure = seen.page.locator(f"[data-figure={name}]")
    drawing = figure.locator(".drawing svg")
    drawing.scroll_into_view_if_needed()
    box = drawing.bounding_box()
    seen.page.mouse.click(box["x"] + box["width"] * across, box["y"] + box["height"] * down)
    figure.locator(".examples").wait_for()
    return figure.locator(".examples")


def test_a_bar_of_a_profile_lists_the_tokens_of_its_bin(seen, result):
    listed = clicked(seen, "mismatch-by-probability", 0.5, 0.8)
    heading = listed.locator("h4").inner_text()
    label = heading.split(" probabilities ")[1]
    places = result.examples.by_bin["mean_probability"][label]
    assert heading.startswith(f"{len(places)} token")
    items = listed.locator("li")
    assert items.count() == len(places)
    for index, place in enumerate(places):
        texts = result.examples.texts[place]
        assert items.nth(index).locator(".near").text_content() == "".join(texts)
        assert items.nth(index).locator("b").text_content() == texts[1]
        where = f"row {result.examples.row[place]}, position {result.examples.position[place]}"
        assert where in items.nth(index).inner_text()


def test_the_tokens_of_a_bin_are_in_it(result):
    bins = result.examples.by_bin
    for place in bins["mean_probability"]["0.1-0.5"]:
        log_prob = result.examples.behavior_log_prob[place]
        mean = math.exp(log_prob + result.examples.log_ratio[place] / 2)
        assert 0.0999 < mean < 0.5001
    for name, sign in (("likelier_target", 1), ("likelier_behavior", -1)):
        for place in bins[name]["0.1-0.3"]:
            assert 0.1 <= sign * result.examples.log_ratio[place] < 0.3


def test_a_point_of_the_exceedance_curve_lists_tokens_of_that_size_and_sign(seen, result):
    listed = clicked(seen, "tokens-beyond-ratio", 0.6, 0.4)
    heading = listed.locator("h4").inner_text()
    kind = "likelier_target" if f"under {result.target}" in heading else "likelier_behavior"
    label = heading.split("|log-ratio| ")[1].removesuffix(" nats")
    assert listed.locator("li").count() == len(result.examples.by_bin[kind][label])


def test_an_example_of_a_stored_sequence_leads_to_its_token(seen, result):
    listed = clicked(seen, "mismatch-by-probability", 0.5, 0.8)
    link = listed.locator("a").first
    row, position = link.get_attribute("href").split("/")[1:]
    link.click()
    seen.page.wait_for_function(
        "row => document.querySelector('.sequences [aria-current]')?.dataset.row === row", arg=row
    )
    facts = seen.page.locator(".token-facts dd")
    assert facts.nth(0).inner_text() == row
    assert facts.nth(1).inner_text() == position


def test_the_keyboard_opens_a_bin_and_closes_it(seen):
    figure = seen.page.locator("[data-figure=mismatch-by-probability]")
    figure.locator(".drawing svg").focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        seen.page.keyboard.press(key)
    figure.locator(".examples h4").wait_for()
    figure.get_by_role("button", name="close").press("Enter")
    assert figure.locator(".examples").count() == 0


def test_profiles_by_step_and_version_are_there(result):
    assert "step" not in result.profiles  # the table has one step
    rollouts = MAKERS["score"]()
    assert len(rollouts.profiles["step"].bins) == len(rollouts.steps)
    for label, step in rollouts.steps.items():
        bins = {one.label: one for one in rollouts.profiles["step"].bins}
        assert bins[label].tokens == step.num_tokens
        value = step.mismatch["k3_kl"].value
        assert bins[label].k3_kl.value == pytest.approx(value)
