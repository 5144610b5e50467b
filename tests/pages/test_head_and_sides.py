"""Head, gauges and both sides of a page, for tables of one step, one policy or few rows."""

from __future__ import annotations

import re

import polars as pl
import pytest
from msgspec.structs import replace

import rcdiag
from rcdiag.api.report import explanation
from rcdiag.pages.blocks import PageTable, Paragraph
from rcdiag.pages.figures import FIGURES
from rcdiag.pages.gauges import gauges
from rcdiag.pages.merge import merged
from rcdiag.pages.page import _head, _tabs, page
from rcdiag.pages.tabs import change
from rcdiag.pages.tabs.diagnosis import _shortened_distinctly, headline_of
from rcdiag.results import MetricValue, from_json
from rcdiag.table.opening import open_table
from rcdiag.usecases.score import score
from tests.pages.makers import MAKERS, SAMPLES, scored
from tests.pages.parts import parts_of
from tests.results.stored import stored


@pytest.fixture(scope="module")
def stale():
    return score(open_table(SAMPLES / "stale.parquet"))


def test_the_head_of_a_table_of_one_step_says_the_step(stale):
    assert not stale.steps
    assert "step 8" in _head(merged([stale])).facts


def test_a_table_of_one_policy_says_once_that_a_mismatch_needs_two(tmp_path):
    table = pl.read_parquet(SAMPLES / "stale.parquet").head(32).drop("old_log_probs")
    table.write_parquet(tmp_path / "one.parquet")
    dump = merged([rcdiag.score(tmp_path / "one.parquet")])
    (tab, *_) = _tabs(dump)
    words = [part.text for part in parts_of(tab) if isinstance(part, Paragraph)]
    assert not any("needs two" in text for text in words)  # the verdict says it
    assert headline_of(dump).next  # in the block of the verdict
    assert "What else it could be" not in [section.title for section in tab.sections]


def test_the_table_of_sequences_has_no_column_without_a_cell(tmp_path):
    table = pl.read_parquet(SAMPLES / "stale.parquet").head(32)
    table.select("response_ids", "rollout_log_probs", "old_log_probs").write_parquet(
        tmp_path / "bare.parquet"
    )
    tables = {
        part.name: part
        for part in parts_of(_tabs(merged([score(open_table(tmp_path / "bare.parquet"))])))
        if isinstance(part, PageTable)
    }
    heads = [column.head for column in tables["sequences"].columns]
    assert heads[:3] == ["Row", "Here as", "Tokens"]
    assert all(len(row.cells) == len(heads) for row in tables["sequences"].rows)


def test_a_bound_below_one_sequence_is_not_written():
    value = MetricValue(value=0.5, low=None, high=0.9, level="unknown", expected=0.01)
    mismatch = {**MAKERS["score-temperature"]().mismatch, "ess_seq": value}
    few, many = (
        next(gauge for gauge in gauges(mismatch, count) if gauge.name == "ess_seq")
        for count in (10, 10_000)
    )
    assert few.about == "weights of whole sequences; 95% interval up to 9"
    assert "warning at or below" in many.about
    assert "error at or below" in many.about


def test_both_sides_of_the_same_data_say_so(stale):
    same = [part for part in parts_of(change.tab(merged([stale]), merged([stale])))]
    told = [part.text for part in same if isinstance(part, Paragraph)]
    assert any(text.startswith("Before and after are the same data") for text in told)
    heading = change.verdict(merged([stale]), merged([stale]))
    assert heading.endswith("no number moved beyond both intervals")
    other = replace(stale, provenance={**stale.provenance, "fingerprint": "another"})
    parts = parts_of(change.tab(merged([stale]), merged([other])))
    assert not any(isinstance(part, Paragraph) and "same data" in part.text for part in parts)


def test_the_caption_of_a_ladder_mentions_only_a_measured_noise_floor():
    compared = from_json(stored("compare"), "compare")
    caption = FIGURES["mismatch-by-rung"].caption
    assert compared.noise_floor is not None
    assert "noise floor" in caption(compared)
    assert "noise floor" not in caption(replace(compared, noise_floor=None))


def test_long_facts_are_cut_where_they_do_not_differ():
    start, end = "/models/" + "a" * 200, "b" * 200
    one, two = _shortened_distinctly([f"{start}/step_0/{end}", f"{start}/step_8/{end}"])
    assert one != two
    assert "step_0" in one
    assert "step_8" in two
    assert max(len(one), len(two)) <= 44
    assert _shortened_distinctly(["short", None]) == ["short", None]


def test_regions_of_a_page_of_two_dumps_have_distinct_names(stale):
    """Screen readers distinguish regions by their names."""
    text = page(stale, against=stale)
    names = re.findall(r'role="region" aria-label="([^"]+)"', text)
    assert len(names) > 4
    assert len(names) == len(set(names))


@pytest.mark.parametrize("verdict", ["correctable", "broken"])
def test_a_page_says_why_a_number_beyond_a_limit_is_a_warning(verdict):
    result = scored("stale.parquet")
    assert result.mismatch["k3_kl"].level == "warning"
    assert result.diagnosis.verdict == "correctable"
    judged = replace(result, diagnosis=replace(result.diagnosis, verdict=verdict))
    text = page(judged, explain=explanation)
    assert ("No metric counts as worse than warning" in text) == (verdict == "correctable")
