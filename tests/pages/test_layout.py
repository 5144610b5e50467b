"""Pages at three widths: no cut words, no needless scrolling, names open their meaning."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from rcdiag.api.report import explanation
from rcdiag.formats import percentage
from rcdiag.pages.page import page
from rcdiag.results import from_json
from tests.pages.browser import visit
from tests.pages.makers import replayed_with_model, scored
from tests.results.stored import stored

# Words of two letters or more that are split over two lines.
CUT_WORDS = r"""() => {
  const cut = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    const place = text.parentElement;
    if (!place?.getClientRects().length || place.closest("svg, script, pre, .tokens")) continue;
    for (const word of text.data.matchAll(/[\p{L}\p{N}]{2,}/gu)) {
      const range = document.createRange();
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
      if (lines.size > 1) cut.push(word[0]);
    }
  }
  return cut;
}"""


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 800, 1280])
def test_no_word_is_cut(browser, rendered, width):
    seen = visit(browser, rendered("whole"), viewport={"width": width, "height": 900})
    for tab in seen.tabs():
        seen.go(tab)
        assert seen.page.evaluate(CUT_WORDS) == [], tab
    seen.close()


@pytest.mark.browser
def test_no_table_scrolls_sideways_in_a_wide_window(browser, rendered, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(page(replayed_with_model()))
    for path in (rendered("whole"), file):
        seen = visit(browser, path, viewport={"width": 1280, "height": 900})
        for tab in seen.tabs():
            seen.go(tab)
            wide = seen.page.evaluate(
                "[...document.querySelectorAll('.wide')].filter(each => each.clientWidth"
                " && each.scrollWidth > each.clientWidth).map(each => each.ariaLabel)"
            )
            assert wide == [], tab
        seen.close()


# Ratios near 1 give the longest percentages in a column of corrections.
LONG = """() => {
  const table = document.querySelector('[data-opens=correction] table')
  const heads = [...table.tHead.rows[0].cells].map(each => each.textContent)
  for (const [words, text] of [['Kept', '99.96%'], ['ESS', '99.9999%'], ['Lost', '0.000165%'],
                               ['bound', '0.000196'], ['Variance', '8.88e-07']])
    heads.forEach((head, place) => {
      if (head.includes(words)) for (const row of table.tBodies[0].rows)
        if (row.cells[place]) row.cells[place].textContent = text
    })
  const region = table.closest('.wide')
  return [region.clientWidth, region.scrollWidth - region.clientWidth]
}"""


@pytest.mark.browser
def test_corrections_with_many_digits_fit_a_wide_window(browser, rendered):
    seen = visit(browser, rendered("whole"), viewport={"width": 1280, "height": 900})
    seen.go("corrections")
    width, beyond = seen.page.evaluate(LONG)
    assert width > 1000
    assert beyond <= 0
    seen.close()


@pytest.mark.browser
def test_cause_and_quoted_names_open_their_meaning(browser, rendered):
    seen = visit(browser, rendered("score-temperature"), viewport={"width": 1280, "height": 900})
    seen.page.locator(".cause .term").first.click()
    popover = seen.page.locator("#popover")
    popover.wait_for()
    assert popover.inner_text().startswith("temperature-raw-recorded")
    seen.close()


@pytest.mark.browser
def test_a_number_of_a_slider_opens_its_meaning(browser, rendered):
    seen = visit(browser, rendered("whole"), viewport={"width": 1280, "height": 900})
    seen.go("corrections")
    seen.page.locator(".readout .term", has_text="truncation loss").click()
    popover = seen.page.locator("#popover")
    popover.wait_for()
    assert popover.inner_text().startswith("truncation_loss")
    seen.close()


@pytest.mark.browser
def test_headings_of_groups_are_hidden_when_rows_are_sorted_or_searched(browser, rendered):
    seen = visit(browser, rendered("score-temperature"), viewport={"width": 1280, "height": 900})
    groups = seen.page.locator("[data-table=numbers] tr.group")
    assert groups.count() > 2
    assert groups.first.is_visible()
    seen.page.locator("[data-table=numbers] input").fill("ess")
    assert not groups.first.is_visible()
    assert "of" in seen.page.locator("[data-table=numbers] [role=status]").inner_text()
    seen.page.locator("[data-table=numbers] input").fill("")
    assert groups.first.is_visible()
    seen.page.locator("[data-table=numbers] button.sort").first.click()
    assert not groups.first.is_visible()
    seen.close()


def test_advice_shared_by_adjacent_findings_is_written_once():
    result = scored("temperature.parquet")
    fixes = [finding.fix for finding in result.findings]
    assert fixes[0] == fixes[1]
    written = page(result, explain=explanation)
    repeats = sum(one == other for one, other in pairwise(fixes))
    assert written.count("<b>Do:</b> as above.") == repeats


def test_long_names_may_break_at_separators_and_numbers_may_not():
    text = re.sub(r"<script.*", "", page(from_json(stored("score"), "score")), flags=re.DOTALL)
    assert "decoupled_<wbr>token_<wbr>is" in text
    assert not re.search(r"\d\.<wbr>\d", text)


@pytest.mark.parametrize(
    ("value", "written"),
    [(1.0, "100%"), (0.9999, "99.99%"), (0.99999, "99.999%"), (0.5, "50%"), (0.0, "0%")],
)
def test_only_a_full_share_reads_100_percent(value, written):
    assert percentage(value) == written


def test_a_page_of_experiments_counts_them_once():
    text = page(from_json(stored("diagnose"), "diagnose"))
    text = re.sub(r"<script.*", "", text, flags=re.DOTALL)
    assert len(re.findall(r"\d+ experiments in \d+ s", text)) == 1


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 800, 1280])
def test_the_question_mark_of_a_heading_is_on_its_line(browser, rendered, width):
    seen = visit(browser, rendered("whole"), viewport={"width": width, "height": 900})
    looked = 0
    for tab in ("corrections", "ladder", "update"):
        seen.go(tab)
        apart = seen.page.evaluate(
            """() => [...document.querySelectorAll('.tab.on .about-head')].map(each => [
                each.previousElementSibling.getBoundingClientRect(), each.getBoundingClientRect(),
                each.closest('th').getBoundingClientRect()])
            .map(([words, mark, head]) => [mark.left - words.right, words.bottom - mark.bottom,
                                           mark.right - head.right])"""
        )
        looked += len(apart)
        for beside, below, beyond in apart:
            assert 0 <= beside < 12
            assert abs(below) < 8
            assert beyond <= 0
    assert looked > 10
    seen.close()


def test_rows_are_whole_pixels_high(browser, rendered):
    """The sticky column is drawn on whole pixels: between them it would hide the row lines."""
    seen = visit(browser, rendered("whole"), viewport={"width": 390, "height": 900})
    for tab in seen.tabs():
        seen.go(tab)
        heights = seen.page.evaluate(
            "[...document.querySelectorAll('.tab.on tbody tr')]"
            ".map(row => row.getBoundingClientRect().height).filter(Boolean)"
        )
        assert [height for height in heights if height % 1] == [], tab
    seen.close()
