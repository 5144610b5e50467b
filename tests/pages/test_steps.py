"""Figures over training steps hold the numbers of the steps' corrections."""

from __future__ import annotations

import pytest

import rcdiag
from rcdiag.pages.figures import FIGURES, applying
from rcdiag.results import ScoreResult


@pytest.fixture(scope="module")
def result() -> ScoreResult:
    return rcdiag.score("sample_data/rollouts.parquet")


def columns(result: ScoreResult, figure: str) -> dict[str, list[object]]:
    chart = FIGURES[figure].chart
    assert chart is not None
    made = chart(result)
    return dict(zip(made.columns, map(list, zip(*made.rows, strict=True)), strict=True))


def test_weights_are_those_that_the_trainer_logs(result):
    shown = columns(result, "weights-by-step")
    assert shown.pop("step") == sorted(map(int, result.steps))
    assert 0 < len(shown) <= 3
    key = "rollout_corr/rollout_is_mean"
    for name, values in shown.items():
        preset = name.partition(" and ")[0]
        logged = [result.steps[str(step)].corrections[preset].metrics[key] for step in range(9)]
        assert values == pytest.approx(logged, rel=1e-9), name


def test_presets_with_equal_numbers_share_a_line(result):
    shown = columns(result, "weights-by-step")
    others = [name.partition(" and ")[2].removesuffix(" more") for name in shown if name != "step"]
    counts = [1 + int(more or 0) for more in others]
    weighted = [one for one in result.corrections.values() if one.weight_sum is not None]
    assert sum(counts) == len(weighted)


def test_rejected_shares_are_those_of_the_masks(result):
    shown = columns(result, "rejected-by-step")
    key = "rollout_corr/rollout_rs_masked_fraction"
    for name, values in shown.items():
        if name != "step":
            steps = (result.steps[str(step)] for step in range(9))
            preset = name.partition(" and ")[0]
            logged = [step.corrections[preset].metrics[key] for step in steps]
            assert values == pytest.approx(logged, abs=1e-9), name
            assert any(values), name


def test_effective_sizes_are_those_of_the_corrections(result):
    shown = columns(result, "weights-ess-by-step")
    assert len(shown) > 1
    for name, values in shown.items():
        if name != "step":
            preset = name.partition(" and ")[0]
            steps = (result.steps[str(step)].corrections[preset] for step in range(9))
            assert values == [step.actual["ess_token_applied"] for step in steps]


@pytest.mark.parametrize(
    ("figure", "metrics", "ideal"),
    [("kl-by-step", ["k1_kl", "k3_kl"], 0.0), ("perplexity-ratio-by-step", ["ppl_ratio"], 1.0)],
)
def test_metrics_have_a_line_at_their_ideal(result, figure, metrics, ideal):
    shown = columns(result, figure)
    assert list(shown) == ["step", *metrics]
    for metric in metrics:
        values = [result.steps[str(step)].mismatch[metric].value for step in range(9)]
        assert shown[metric] == values
    (panel,) = FIGURES[figure].chart(result).panels
    assert (panel.rules[0].axis, panel.rules[0].at) == ("y", ideal)


def test_without_weights_or_rejection_there_is_no_figure_of_them(result):
    alone = rcdiag.score("sample_data/rollouts.parquet", presets=["disabled"])
    names = {spec.name for spec in applying(alone)}
    assert "kl-by-step" in names
    assert not names & {"weights-by-step", "weights-ess-by-step", "rejected-by-step"}
