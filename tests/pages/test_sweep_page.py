"""The tab Corrections: ranking, grouping, drawings, and initial sliders."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rcdiag.errors import RcdiagError
from rcdiag.pages.merge import merged
from rcdiag.pages.page import page
from rcdiag.pages.sweep.words import answer, as_good
from rcdiag.pages.tabs.corrections import tab
from rcdiag.pages.tabs.corrections.treatments import tag_of, treatments_of
from rcdiag.results import ScoreResult, SweepResult
from rcdiag.trainers.emit import emit, on_sweep_page
from rcdiag.usecases.sweep.candidates import CANDIDATES
from rcdiag.usecases.sweep.configuration import choice_configurations
from tests.pages.makers import SAMPLES, scored, swept_all

STALE = SAMPLES / "stale.parquet"


@pytest.fixture(scope="module")
def result() -> SweepResult:
    return swept_all("stale.parquet")


@pytest.fixture(scope="module")
def presets() -> ScoreResult:
    return scored("stale.parquet")


@pytest.fixture(scope="module")
def text(result, presets) -> str:
    return page([result, presets])


@pytest.mark.parametrize(("holds", "word"), [(True, "holds"), (None, "not tested")])
def test_a_forecast_that_did_not_fail_is_drawn_with_its_test(result, holds, word):
    html = page(replace(result, forecast=replace(result.forecast, holds=holds)))
    assert 'data-figure="length-forecast"' in html
    assert f"Forecast: {word}; " in html


def test_a_forecast_that_failed_is_not_drawn(result):
    html = page(replace(result, forecast=replace(result.forecast, holds=False)))
    assert 'data-figure="length-forecast"' not in html
    assert "Forecast: fails; " in html
    assert "it misses the longer half: ignore it" in html


def test_a_page_ranks_nothing_where_the_recorded_policy_did_not_sample():
    name = "temperature.parquet"
    html = page([swept_all(name, 12), scored(name)])
    start, end = html.index('id="corrections"'), html.index('id="about"')
    shown = html[start:end]
    assert "No correction repairs this" in shown
    for absent in ("Expected error", "recommended<", "as good<", "candidate-ranking", ">ok<"):
        assert absent not in shown


def test_only_candidates_without_a_larger_error_are_called_as_good(result):
    """Other candidates within one standard error are called indistinguishable."""
    advice = result.recommendation
    best = advice.candidates[0]
    errors = {"token_tis_5": 1.02, "seq_tis_2": 0.8, "seq_tis_5": 5.0, best.name: 1.0}
    candidates = [
        replace(one, refused=[], gradient_bias=0.0, gradient_noise=errors[one.name])
        for one in advice.candidates
        if one.name in errors
    ]
    near = replace(
        advice,
        answer="take",
        choice=best.name,
        candidates=candidates,
        indistinguishable=[name for name in errors if name != best.name] + [best.name],
    )
    assert as_good(near) == ["token_tis_5", "seq_tis_2"]
    swept = replace(result, recommendation=near)
    assert answer(swept).endswith("; as good: token_tis_5, seq_tis_2")
    dump = merged([swept])
    tags = {name: tag_of(item, dump) for item in treatments_of(dump) for name in item.names}
    assert tags[best.name] == "recommended"
    assert tags["seq_tis_2"] == tags["token_tis_5"] == "as good"
    assert tags["seq_tis_5"] == "same within error"


def test_equal_corrections_share_a_row_with_all_their_names(result, presets):
    treatments = treatments_of(merged([presets, result]))
    names = [name for item in treatments for name in item.names]
    assert len(names) == len(set(names))
    assert set(names) == {*presets.corrections, *CANDIDATES}
    together = next(item for item in treatments if "decoupled_token_is" in item.names)
    assert "token_tis_2" in together.names
    one, other = presets.corrections["decoupled_token_is"], presets.corrections["disabled"]
    assert one.actual["ess_token_applied"] != other.actual["ess_token_applied"]
    assert "disabled" not in together.names


def test_a_preset_that_was_swept_has_bias_and_variance(result, presets):
    treatments = treatments_of(merged([presets, result]))
    swept = {item.names: item for item in treatments if item.candidate is not None}
    (together,) = [item for names, item in swept.items() if "decoupled_seq_is" in names]
    (row,) = [row for row in result.families["seq_tis"].rows if row.bounds == {"upper": 2.0}]
    assert together.bias == pytest.approx(row.weight_distance, rel=1e-13)
    assert together.variance == pytest.approx(row.weight_variance, rel=1e-13)
    assert together.error == together.candidate.gradient_bias + together.candidate.gradient_noise


def test_the_table_is_sorted_by_expected_error_with_refused_candidates_last(result, presets):
    treatments = treatments_of(merged([presets, result]))
    good = [e.error for e in treatments if e.candidate and not e.candidate.refused]
    assert good == sorted(good)
    places = [bool(e.candidate.refused) for e in treatments if e.candidate]
    assert places == sorted(places)


def test_sliders_start_at_the_recommendation(result):
    advice = result.recommendation
    chosen = next(item for item in advice.candidates if item.name == "seq_tis_2")
    picked = replace(result, recommendation=replace(advice, choice=chosen.name))
    parts = [block for s in tab(merged([picked])).sections for block in s.blocks]
    (sliders,) = [block for block in parts if getattr(block, "name", "") == "sliders"]
    start = sliders.data["start"]
    assert start["family"] == "seq_tis"
    assert result.families["seq_tis"].rows[start["row"]].bounds == chosen.bounds


def test_without_a_choice_no_candidate_is_called_recommended(result, text):
    """With 256 rows of a stale sampler the reference is too noisy."""
    advice = result.recommendation
    assert (advice.answer, advice.choice, advice.choice_yaml) == ("cannot-distinguish", None, {})
    assert "the table does not show which correction is best" in text
    assert "recommended<" not in text
    assert "To paste into verl<" not in text
    dump = merged([result])
    tags = {name: tag_of(item, dump) for item in treatments_of(dump) for name in item.names}
    assert {name for name, tag in tags.items() if tag} == set(advice.indistinguishable)
    assert set(tags.values()) == {"", "same within error"}


def test_the_configuration_of_the_choice_equals_that_of_emit(result, presets):
    choice = "token_tis_2"
    advice = replace(
        result.recommendation,
        answer="take",
        choice=choice,
        choice_yaml=choice_configurations(choice),
    )
    text = page([replace(result, recommendation=advice), presets])
    for trainer, written in advice.choice_yaml.items():
        try:
            assert written == emit(CANDIDATES[choice].correction, trainer).text
        except RcdiagError:  # the trainer cannot express it, and a comment says so
            assert all(line.startswith("#") for line in written.splitlines())
        assert f"To paste into {trainer}" in text
    assert list(advice.choice_yaml) == on_sweep_page()
