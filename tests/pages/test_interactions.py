"""Mouse interactions of a page: sort, search, pick, open, copy, save, follow links."""

from __future__ import annotations

import json

import pytest

from rcdiag.results import from_json, to_json
from tests.pages.browser import visit
from tests.pages.makers import MAKERS

pytestmark = pytest.mark.browser


@pytest.fixture
def seen(browser, rendered):
    opened = visit(browser, rendered("whole"), viewport={"width": 1280, "height": 900})
    opened.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield opened
    assert opened.complaints == []
    opened.close()


def clipboard(seen) -> str:
    return seen.page.evaluate("navigator.clipboard.readText()")


def column(seen, table: str, place: int) -> list[str]:
    cells = f"[data-table={table}] tbody tr:visible > :nth-child({place})"
    return [item.inner_text().split("\n")[0] for item in seen.page.locator(cells).all()]


def test_drawings_of_a_pair_and_of_bounds_fit_a_window_that_was_made_narrower(seen):
    """As when a phone is turned: drawings for the former width would make the page scroll."""
    # A drawing is replaced when its window changes: found and measured in one step.
    wide = "place => document.querySelector(place)?.clientWidth > 390"
    narrow = """place => {
        const width = document.querySelector(place)?.clientWidth
        return 0 < width && width < 390
    }"""
    for tab, place in (("ladder", ".pair .drawing svg"), ("corrections", ".curves svg")):
        seen.page.set_viewport_size({"width": 1280, "height": 900})
        seen.go(tab)
        seen.page.wait_for_function(wide, arg=place)
        seen.page.set_viewport_size({"width": 390, "height": 900})
        seen.page.wait_for_function(narrow, arg=place)
        assert seen.overflow <= 0, tab


@pytest.mark.parametrize(
    ("tab", "place"), [("ladder", ".pair"), ("corrections", ".sliders .beside")]
)
def test_drawings_of_a_pair_and_of_bounds_have_their_values_and_a_copy(seen, tab, place):
    seen.go(tab)
    host = seen.page.locator(place)
    host.get_by_role("button", name="values").click()
    rows = host.locator(".tools + .values tbody tr").count()
    assert rows > 2
    host.get_by_role("button", name="copy data").click()
    copied = clipboard(seen).splitlines()
    assert len(copied) == rows + 1
    assert "\t" in copied[0]


def test_one_tab_is_shown_and_a_link_leads_to_another(seen):
    assert seen.page.locator(".tab:visible").count() == 1
    seen.page.get_by_role("link", name="Ladder").click()
    seen.page.locator("#ladder").wait_for()  # the browser tells the page of a new address later
    assert not seen.page.locator("#diagnosis").is_visible()
    assert seen.page.locator("nav a[aria-current]").inner_text() == "Ladder"


def test_an_address_leads_to_a_preset(browser, rendered):
    opened = visit(browser, rendered("whole"), viewport={"width": 1280, "height": 900})
    opened.go("corrections/bypass_pg_is")
    opened.page.locator("tr.detail").wait_for()
    assert "bypass_pg_is" in opened.page.locator("tr.chosen").inner_text()
    assert opened.page.locator("tr.detail").inner_text().count("rollout_is_threshold") >= 1
    opened.close()


def test_an_address_leads_to_a_section_of_a_tab(seen):
    seen.go("provenance")
    assert seen.page.locator("#about").is_visible()
    assert not seen.page.locator("#diagnosis").is_visible()


def test_a_table_is_searched(seen):
    search = seen.page.get_by_role("searchbox", name="Search: All numbers of the mismatch")
    search.fill("kl reverse")
    names = column(seen, "numbers", 1)
    assert names
    assert all("kl_reverse" in name for name in names)
    search.fill("")
    assert len(column(seen, "numbers", 1)) > 50


def test_a_table_is_sorted_by_numbers_both_ways(seen):
    seen.go("update")
    button = seen.page.locator("[data-table=updates] thead button.sort", has_text="|c|")
    button.click()
    up = [float(text) for text in column(seen, "updates", 4)]
    assert up == sorted(up)
    button.click()
    down = [float(text) for text in column(seen, "updates", 4)]
    assert down == sorted(up, reverse=True)
    assert seen.page.locator("th[aria-sort=descending]").count() == 1


def test_a_command_is_copied(seen):
    button = seen.page.locator(".verdict .copy").first
    command = seen.page.locator(".verdict .command code").first.inner_text()
    button.click()
    assert clipboard(seen) == command
    assert command.startswith("rcdiag ")


def test_a_figure_shows_and_copies_its_numbers(seen):
    seen.go("tokens")
    figure = seen.page.locator("[data-figure=tokens-beyond-ratio]")
    figure.get_by_role("button", name="values").click()
    assert figure.locator("tbody tr").count() > 10
    figure.get_by_role("button", name="copy data").click()
    first, *rows = clipboard(seen).split("\n")
    assert first.split("\t")[0] == "|log-ratio|"
    assert len(rows) == figure.locator("tbody tr").count()


def test_the_mouse_over_a_figure_shows_a_tip(seen):
    seen.go("tokens")
    figure = seen.page.locator("[data-figure=tokens-beyond-ratio] .drawing svg")
    box = figure.bounding_box()
    seen.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.35)
    tip = seen.page.locator("#tip")
    tip.wait_for()
    assert "|log-ratio|: " in tip.inner_text()


def test_a_picker_shows_one_profile_at_a_time(seen):
    seen.go("tokens")
    group = seen.page.locator("[data-picker]")
    assert group.locator("figure:visible").count() == 1
    group.locator("select").select_option(label="position")
    assert group.locator("figure:visible h4").inner_text() == "Mismatch by position"
    group.locator("figure:visible svg").wait_for()  # it is drawn when it has a size; one alone


def test_a_point_of_the_scatter_opens_its_row(seen):
    seen.go("corrections")
    point = seen.page.locator("[data-figure=bias-and-variance] circle[data-row=decoupled_seq_is]")
    point.click()
    seen.page.locator("tr.detail").wait_for()
    assert "decoupled_seq_is" in seen.page.locator("tr.chosen").inner_text()


def test_a_row_under_the_mouse_has_a_ring_in_the_scatter(seen):
    seen.go("corrections")
    seen.page.locator("[data-figure=bias-and-variance] circle[data-row]").first.wait_for()
    seen.page.locator("#corrections tr[data-key=decoupled_seq_is]").hover()
    ringed = seen.page.locator("[data-figure=bias-and-variance] circle.pointed")
    assert ringed.count() == 1
    assert ringed.get_attribute("data-row") == "decoupled_seq_is"


def test_the_pair_of_sampler_and_trainer_is_open_beside_the_triangle(seen):
    seen.go("ladder")
    pair = seen.page.locator(".pair")
    pair.locator("table").wait_for()
    assert pair.locator("h4").inner_text() == "rollout and old"
    triangle = seen.page.locator("[data-figure=pair-distances]").bounding_box()
    assert pair.bounding_box()["x"] > triangle["x"] + triangle["width"]
    focused = seen.page.evaluate("document.activeElement.closest('.pair')")
    assert focused is None  # what was not requested takes neither focus nor address
    assert seen.page.evaluate("location.hash") == "#ladder"


def test_a_legend_shows_every_mark_that_is_drawn(seen):
    seen.go("tokens")
    key = seen.page.locator("[data-figure=concentration] .key span")
    assert [each.inner_text().strip() for each in key.all()] == ["here", "all tokens alike"]
    assert key.nth(1).locator("i.dash-mark").count() == 1
    seen.go("update")
    factors = seen.page.locator("[data-figure=ratio-factors] .key")
    lines = seen.page.locator("[data-figure=ratio-factors] path.series").count()
    assert lines == 1  # no token differs between old and current
    assert "drift within the update" not in "".join(factors.all_inner_texts())


def test_numbers_beyond_a_guide_are_a_list_with_limits(seen):
    seen.go("diagnosis/findings")
    lines = seen.page.locator("#findings .beyond").first.locator("li")
    words = lines.first.inner_text()
    assert words.startswith("k3_kl 0.025 (0.021 to 0.032): warning; warning from 0.001")
    lines.first.locator(".term").click()
    seen.page.locator("#popover").wait_for()
    seen.page.keyboard.press("Escape")


def test_every_level_is_shown_with_its_thresholds(seen):
    seen.go("diagnosis/numbers")
    rows = "[data-table=numbers] tr[data-key={}]"
    cells = seen.page.locator(rows.format("k2_kl")).locator("td").all_inner_texts()
    assert cells[1] == "warning"  # an error by its guide, but weights are valid here
    assert cells[3].startswith("warning from 0.005, error from 0.02")
    relative = seen.page.locator(rows.format("ess_seq")).locator("td").last.inner_text()
    assert (
        "warning" not in relative.split("\n")[0]
    )  # whose thresholds depend on rounding at these lengths


def test_a_cell_of_the_triangle_opens_its_pair(seen):
    seen.go("ladder")
    seen.page.locator("[data-figure=pair-distances] rect.cell").first.click()
    pair = seen.page.locator(".pair")
    pair.locator("table").wait_for()
    assert "k3_kl" in pair.inner_text()
    pair.locator("svg").wait_for()


def test_a_document_is_saved_as_a_result_that_can_be_read(seen, rendered, tmp_path):
    seen.go("about")
    with seen.page.expect_download() as download:
        seen.page.get_by_role("button", name="score.json").click()
    download.value.save_as(tmp_path / "score.json")
    text = (tmp_path / "score.json").read_text()
    assert from_json(text, "score.json").kind == "score"
    document = json.loads(text)
    assert document["diagnosis"]["verdict"] == "correctable"
    stored = next(result for result in MAKERS["whole"]() if result.kind == "score")
    expected = json.loads(to_json(stored))
    del document["provenance"], expected["provenance"]  # when it was made
    assert document == expected  # to the last digit


def test_the_glossary_has_the_words_of_the_page(seen):
    seen.go("about")
    seen.page.get_by_role("searchbox", name="Search the glossary").fill("k3_kl")
    assert "KL(behavior || target)" in seen.page.locator(".glossary dd:visible").first.inner_text()
