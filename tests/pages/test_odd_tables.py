"""Pages of incomplete tables: an empty panel has a sentence that says why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace

from rcdiag.pages.blocks import Figure, Paragraph
from rcdiag.pages.charts import ChartAxis
from rcdiag.pages.merge import merged
from rcdiag.pages.page import _tabs, page
from rcdiag.pages.score.exceedance import any_beyond
from rcdiag.pages.score.steps import chart_over_steps, metric_columns
from rcdiag.results import MetricValue, ScoreResult
from rcdiag.table.opening import open_table
from rcdiag.usecases.score import score
from tests.builders import ids_like, write_table
from tests.pages.browser import visit
from tests.pages.makers import MAKERS, SAMPLES, every_preset
from tests.pages.parts import parts_of

ROWS = [[-0.5, -1.0, -0.25], [-0.125, -2.0], [-0.75, -1.5, -0.5, -0.25], [-1.0, -0.5]] * 3


def scored(folder: Path, old: list[list[float]]) -> ScoreResult:
    write_table(
        folder / "odd.parquet",
        response_ids=ids_like(ROWS),
        rollout_log_probs=ROWS,
        old_log_probs=old,
    )
    return score(open_table(folder / "odd.parquet"), plan=every_preset())


def parts(result: ScoreResult, kind: type) -> list:
    tabs = {tab.name: tab for tab in _tabs(merged([result]))}
    return [part for tab in tabs.values() for part in parts_of(tab) if isinstance(part, kind)]


def numbers(figure: Figure) -> list[float]:
    """Return the numbers on the axes of a chart."""
    columns = {
        mark[side]
        for panel in figure.chart["panels"]
        for mark in panel["marks"]
        for side in ("x", "y")
        if panel[side].get("scale") != "names"
    }
    places = [figure.chart["columns"].index(name) for name in columns]
    values = [row[place] for row in figure.chart["rows"] for place in places]
    return [value for value in values if isinstance(value, (int, float))]


def test_a_table_of_nan_has_neither_figures_nor_empty_tables(tmp_path):
    result = scored(tmp_path, [[float("nan")] * len(row) for row in ROWS])
    tabs = [tab.name for tab in _tabs(merged([result]))]
    assert tabs == ["diagnosis", "corrections", "about"]
    assert parts(result, Figure) == []
    assert any(words.text.startswith("None of the 6") for words in parts(result, Paragraph))


def test_rows_that_are_left_out_are_counted_where_the_others_are_shown(tmp_path):
    old = [[0.5] * len(row) if place < 8 else row for place, row in enumerate(ROWS)]
    old[9] = [-0.5, -1.0]
    result = scored(tmp_path, old)
    assert result.rows_left_out == 8
    said = [words.text for words in parts(result, Paragraph)]
    assert any(text.startswith("This tab covers the 4 of 12 responses") for text in said)


def test_a_table_without_a_sound_row_is_said_to_be_shown_as_it_is(tmp_path):
    result = scored(tmp_path, [[0.5] * len(row) for row in ROWS])
    said = [words.text for words in parts(result, Paragraph)]
    assert not any("covers the 0" in text for text in said)
    assert any(text.startswith("Every response has log-probs that are NaN") for text in said)


def test_equal_columns_are_reported_as_equal(tmp_path):
    result = scored(tmp_path, ROWS)
    names = [figure.name for figure in parts(result, Figure)]
    assert not any_beyond(result)
    assert "tokens-beyond-ratio" not in names
    assert "No log-ratio is larger than 0.001 nats." in [w.text for w in parts(result, Paragraph)]


@pytest.mark.parametrize("values", [lambda row: [-1.0] * len(row), lambda row: row])
def test_every_figure_of_an_odd_table_has_a_number_to_draw(tmp_path, values):
    result = scored(tmp_path, [values(row) for row in ROWS])
    figures = parts(result, Figure)
    assert figures
    for figure in figures:
        assert numbers(figure), figure.name


def with_gap(result: ScoreResult) -> ScoreResult:
    """Remove k3's interval at the second, third and fifth step, so that the fourth is isolated."""
    steps = {}
    for place, (name, step) in enumerate(result.steps.items()):
        bare = place in (1, 2, 4)
        value = MetricValue(value=0.01, low=None if bare else 0.005, high=None if bare else 0.02)
        steps[name] = replace(step, mismatch={**step.mismatch, "k3_kl": value})
    return replace(result, steps=steps)


def test_the_band_on_paper_ends_where_an_interval_is_missing():
    result = with_gap(MAKERS["score"]())
    assert len(result.steps) == 9
    chart = chart_over_steps(result, metric_columns("k3_kl")(result), ChartAxis())
    lows = [row[2] for row in chart.rows]
    (band,) = result.plot("mismatch-by-step").axes[0].collections
    corners = np.concatenate([path.vertices for path in band.get_paths()])
    at = sorted(set(corners[:, 0].tolist()))
    steps = [row[0] for row in chart.rows]
    assert at == [step for step, low in zip(steps, lows, strict=True) if low is not None]


@pytest.mark.browser
def test_the_band_on_the_page_ends_where_an_interval_is_missing(browser, tmp_path):
    file = tmp_path / "gap.html"
    file.write_text(page(with_gap(MAKERS["score"]())))
    opened = visit(browser, file, viewport={"width": 1280, "height": 900})
    figure = opened.page.locator("figure[data-figure=mismatch-by-step]")
    figure.locator("path.area").first.wait_for()
    # Steps 0; 3; 5 to 8: the first two stand alone.
    assert figure.locator("path.area").count() == 1
    assert figure.locator("line.error-bar").count() == 2
    opened.close()


@pytest.mark.browser
def test_a_run_of_twenty_steps_has_more_than_two_ticks(browser, tmp_path):
    table = pl.read_parquet(SAMPLES / "rollouts.parquet").with_row_index("at")
    some = table.with_columns(step=(pl.col("at") % 20).cast(pl.Int64)).drop("at").head(240)
    some.write_parquet(tmp_path / "twenty.parquet")
    file = tmp_path / "twenty.html"
    file.write_text(page(score(open_table(tmp_path / "twenty.parquet"))))
    opened = visit(browser, file, viewport={"width": 1280, "height": 900})
    axis = opened.page.locator("figure[data-figure=mismatch-by-step] .axis text")
    axis.first.wait_for()
    texts = axis.evaluate_all("all => all.map(each => each.textContent)")
    assert {"0", "5", "10", "15"} <= set(texts)
    opened.close()


def test_a_table_of_one_prompt_group_says_why_no_number_has_an_interval(tmp_path):
    table = pl.read_parquet(SAMPLES / "stale.parquet").head(3)
    table.write_parquet(tmp_path / "three.parquet")
    result = score(open_table(tmp_path / "three.parquet"), plan=every_preset())
    assert result.num_clusters == 1
    assert result.mismatch["k3_kl"].low == result.mismatch["k3_kl"].high
    text = page(result)
    assert "There are no intervals by cluster" in text
    assert "are left out one by one" not in text
