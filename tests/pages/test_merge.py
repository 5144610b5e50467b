"""Results of one dump make one page; those of different dumps are refused or compared."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.pages.gauges import gauges_of_two
from rcdiag.pages.merge import merged
from rcdiag.pages.page import page
from rcdiag.pages.tabs.change import causes, change, verdict
from rcdiag.results import Diagnosis, MetricValue, NamedCause, from_json
from tests.results.stored import stored


@pytest.fixture(scope="module")
def score():
    return from_json(stored("score"), "score")


def as_dump(result, fingerprint: str):
    return replace(result, provenance={**result.provenance, "fingerprint": fingerprint})


def judged(slug: str, verdict: str) -> Diagnosis:
    cause = NamedCause(
        slug=slug,
        verdict=verdict,
        confidence=0.9,
        side="sampler",
        share_of_rows=1.0,
        message="It is so.",
    )
    pair = {"sampler": "rollout", "trainer": "old"}
    return Diagnosis(verdict=verdict, summary="It is so.", pair=pair, causes=[cause])


def test_results_of_one_dump_share_a_page(score):
    sweep = as_dump(from_json(stored("sweep"), "sweep"), score.provenance["fingerprint"])
    sweep = replace(sweep, provenance={**sweep.provenance, "rows": score.provenance["rows"]})
    text = page([score, replace(sweep, behavior=score.behavior, target=score.target)])
    for part in ('data-name="score"', 'data-name="sweep"', 'data-start="'):
        assert part in text


def test_results_of_other_data_are_refused_and_the_field_is_named(score):
    other = replace(as_dump(score, "another"), kind="score")
    with pytest.raises(RcdiagError, match=r"`provenance.fingerprint` is .* and another"):
        merged([score, other])


def test_results_of_another_pair_are_refused_and_the_field_is_named(score):
    sweep = from_json(stored("sweep"), "sweep")
    sweep = replace(sweep, provenance=score.provenance, behavior=score.behavior, target="other")
    with pytest.raises(RcdiagError, match=r"`target` is .* and other"):
        merged([score, sweep])


def test_two_results_of_one_command_are_refused(score):
    with pytest.raises(RcdiagError, match="two results of `rcdiag score`"):
        merged([score, score])


def test_comparing_two_dumps_names_gone_causes_and_changed_numbers(score):
    large = {"k3_kl": MetricValue(value=0.1, low=0.09, high=0.12, level="error")}
    before = replace(
        score,
        diagnosis=judged("stale-weights", "correctable"),
        mismatch={**score.mismatch, **large},
    )
    healthy = {"k3_kl": MetricValue(value=1e-5, low=1e-5, high=2e-5, level="ok")}
    after = replace(
        as_dump(score, "after"),
        diagnosis=judged("engine-noise", "healthy"),
        mismatch={**score.mismatch, **healthy},
    )
    one, two = merged([before]), merged([after])
    assert causes(one, two) == (["stale-weights"], [], [])
    unsure = merged([replace(after, diagnosis=judged("stale-weights", "inconclusive"))])
    assert causes(one, unsure) == ([], [], ["stale-weights"])
    assert verdict(one, unsure).startswith("The cause is still there: verdict correctable, then")
    assert verdict(one, two).startswith("It helped: stale-weights is gone")
    assert change("k3_kl", large["k3_kl"], healthy["k3_kl"]) == "better"
    text = page(before, against=after)
    assert "It helped: stale-weights is gone" in text
    assert "<title>correctable → healthy: " in text
    for name in ("before-score", "after-score"):
        assert f'data-name="{name}"' in text


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        ((0.1, 0.08, 0.12), (0.01, 0.005, 0.02), "better"),
        ((0.01, 0.005, 0.02), (0.1, 0.08, 0.12), "worse"),
        ((0.1, 0.08, 0.12), (0.11, 0.09, 0.13), "within the intervals"),
        ((0.1, 0.08, 0.12), (0.01, None, 0.02), "no interval"),
        ((0.1, 0.08, 0.12), (None, None, None), "not known"),
    ],
)
def test_a_number_changed_if_the_intervals_do_not_overlap(before, after, word):
    values = [MetricValue(value=v, low=low, high=high) for v, low, high in (before, after)]
    assert change("k3_kl", *values) == word


def test_the_api_takes_several_results_and_a_second_dump(score, tmp_path):
    written = rcdiag.report([score], tmp_path / "a.html", against=as_dump(score, "after"))
    assert written == [tmp_path / "a.html"]
    assert "Before: " in (tmp_path / "a.html").read_text()


def test_numbers_of_two_dumps_stand_in_pairs_on_one_scale(score):
    kappa = replace(score.mismatch["kappa"], value=0.9, low=None, high=None, level="unknown")
    other = {**score.mismatch, "kappa": kappa}
    pairs = gauges_of_two((score.mismatch, 256), (other, 128))
    assert [one.name for one, _ in pairs] == [two.name for _, two in pairs]
    assert [one.name for one, _ in pairs][-1] == "ratio_mean_z"
    for one, two in pairs:
        assert [band[:2] for band in one.bands] == [band[:2] for band in two.bands]
        assert one.at == two.at
    assert gauges_of_two((score.mismatch, 256), ({}, 0))[0][1] is None
