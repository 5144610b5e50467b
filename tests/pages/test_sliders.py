"""The page of a sweep: a slider moves the numbers, the markers and the configuration."""

from __future__ import annotations

import pytest

from tests.pages.browser import visit

pytestmark = pytest.mark.browser

QUARTERS = 4  # columns behind those that are read out: shares kept, by length


@pytest.fixture
def seen(browser, rendered):
    opened = visit(browser, rendered("sweep"), viewport={"width": 1280, "height": 900})
    yield opened
    assert opened.complaints == []
    opened.page.context.close()


@pytest.fixture
def family(seen):
    """The family that is open at the start."""
    return seen.page.locator("details.family[open]").first


def shown(family) -> dict[str, object]:
    return {
        "bounds": family.locator("output").all_inner_texts(),
        "numbers": family.locator(".readout dd").all_inner_texts(),
        "markers": [
            item.get_attribute("transform") for item in family.locator("svg .marker").all()
        ],
        "configuration": family.locator(".config").inner_text(),
    }


def test_every_family_starts_on_a_row_of_its_table(seen):
    seen.unfold()
    families = seen.page.locator("details.family").all()
    assert len(families) > 3
    for item in families:
        row = item.locator("tr.current td").all_text_contents()
        assert shown(item)["bounds"] + shown(item)["numbers"] == row[:-QUARTERS]


@pytest.mark.parametrize(("key", "at"), [("Home", 0), ("End", -1)])
def test_the_keys_of_a_slider_move_everything(seen, family, key, at):
    slider = family.get_by_role("slider").first
    slider.focus()
    slider.press("End" if key == "Home" else "Home")
    before = shown(family)
    slider.press(key)
    after = shown(family)
    assert [name for name in before if before[name] == after[name]] == []
    texts = slider.get_attribute("data-texts").split(" ")
    assert after["bounds"][0] == slider.get_attribute("aria-valuetext") == texts[at]


def test_the_numbers_are_those_of_the_row_of_that_bound(seen, family):
    slider = family.get_by_role("slider").first
    slider.fill("3")
    bound = slider.get_attribute("data-texts").split(" ")[3]
    row = family.locator("tr.current td").all_text_contents()
    assert row[0] == bound
    assert shown(family)["numbers"] == row[family.get_by_role("slider").count() : -QUARTERS]


def test_a_click_on_a_row_takes_its_bound(seen, family):
    family.locator(".rows summary").click()
    row = family.locator("tbody tr").nth(2)
    row.click()
    assert shown(family)["bounds"][0] == row.locator("td").first.inner_text()


def test_another_trainer_another_configuration(seen, family):
    before = shown(family)["configuration"]
    family.locator("select").select_option(index=1)
    assert shown(family)["configuration"] not in ("", before)


def test_without_scripts_there_are_tables_and_no_dead_controls(browser, rendered):
    seen = visit(browser, rendered("sweep"), java_script_enabled=False)
    first = seen.page.locator("details.family[open]").first
    assert first.locator("table.dense").is_visible()
    assert not first.locator(".controls").is_visible()
    seen.page.context.close()
