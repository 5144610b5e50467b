"""Sliders of the page: a bound moves the numbers, the curve and the configuration."""

from __future__ import annotations

import json

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.pages.page import page
from rcdiag.results import from_json
from rcdiag.trainers.emit import emit
from rcdiag.usecases.sweep.estimator_families import FAMILIES
from tests.pages.browser import visit
from tests.pages.makers import swept

pytestmark = pytest.mark.browser


@pytest.fixture
def seen(browser, rendered):
    opened = visit(browser, rendered("sweep"), viewport={"width": 1280, "height": 900})
    opened.go("corrections")
    opened.page.locator(".readout dd").first.wait_for()
    yield opened
    assert opened.complaints == []
    opened.close()


@pytest.fixture(scope="module")
def result():
    return swept()


def shown(seen) -> dict[str, object]:
    block = seen.page.locator(".sliders")
    return {
        "bounds": block.locator("output").all_inner_texts(),
        "numbers": block.locator(".readout dd").all_inner_texts(),
        "configuration": block.locator(".config").inner_text(),
    }


def emitted(family: str, bounds: dict[str, float], trainer: str) -> str | None:
    try:
        return emit(FAMILIES[family].correction(bounds), trainer).text
    except RcdiagError:
        return None


def test_they_start_at_the_recommended_setting_or_the_common_bound(seen):
    assert seen.page.locator("select.family").input_value() == "token_tis"
    bound = float(shown(seen)["bounds"][0])
    assert 1.7 < bound < 2.3


@pytest.mark.parametrize("family", ["token_tis", "geo_rs", "k3_rs_seq_tis"])
def test_the_configuration_matches_the_shown_setting(seen, result, family):
    seen.page.locator("select.family").select_option(family)
    slider = seen.page.locator(".sliders").get_by_role("slider").first
    slider.focus()
    seen.page.keyboard.press("Home")
    written = shown(seen)["configuration"]
    rows = result.families[family].rows
    trainer = seen.page.locator("select.trainer").input_value()
    assert written in [emitted(family, row.bounds, trainer) for row in rows]


@pytest.mark.parametrize("key", ["Home", "End"])
def test_the_keys_of_a_slider_move_numbers_and_configuration(seen, key):
    slider = seen.page.locator(".sliders").get_by_role("slider").first
    slider.focus()
    slider.press("End" if key == "Home" else "Home")
    before = shown(seen)
    slider.press(key)
    after = shown(seen)
    assert [name for name in before if before[name] == after[name]] == []
    assert after["bounds"][0] == slider.get_attribute("aria-valuetext")


def test_the_configuration_follows_the_chosen_trainer(seen):
    before = shown(seen)["configuration"]
    seen.page.locator("select.trainer").select_option(index=1)
    assert shown(seen)["configuration"] not in ("", before)


def test_an_old_result_without_configurations_shows_a_note(browser, result, tmp_path):
    document = json.loads(result.to_json())
    del document["recommendation"]["choice_yaml"]
    for family in document["families"].values():
        del family["configurations"]
    path = tmp_path / "older.html"
    path.write_text(page(from_json(json.dumps(document), "r.json")))
    assert "This result holds no configuration to paste" in path.read_text()
    opened = visit(browser, path)
    opened.go("corrections")
    opened.page.locator(".readout dd").first.wait_for()
    assert "holds no configuration" in opened.page.locator(".config").inner_text()
    assert not opened.page.locator("select.trainer").is_visible()
    assert opened.complaints == []
    opened.close()
