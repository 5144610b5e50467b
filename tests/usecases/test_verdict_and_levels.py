"""No metric has a worse level than the verdict allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import rcdiag as api
from rcdiag.diagnosis.checks.families import family_checks
from rcdiag.diagnosis.conclusion import by_size
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.guides import SIZES, beyond_guides, suite_of
from rcdiag.formats import effective_share
from rcdiag.pages.gauges import gauges
from rcdiag.results import SEVERITIES
from rcdiag.results.diagnosis import NOTHING_WRONG, SEVERITY_OF_VERDICT
from rcdiag.statistics.metrics import MAGNITUDE, METRICS
from tests.cli.conftest import rcdiag  # noqa: F401
from tests.diagnosis.tables import counted, drifted, made, noisy, plain, with_values, write

OF_NUMBERS = {check.slug for check in family_checks()}
MEANS = {"k3_kl", "k2_kl", "exp_abs_log_ratio_mean", "ratio_deviation_mean", "prob_diff_mean"}

CASES: dict[str, Any] = {
    # 6 tokens per row: sequences hardly differ, but tokens differ by more than a guide.
    **{
        f"short rows {noise}": lambda noise=noise: made(plain, noisy(noise), rows=200, length=6)
        for noise in (0.01, 0.03, 0.05, 0.08)
    },
    **{
        f"long rows {noise}": lambda noise=noise: made(plain, noisy(noise), rows=64, length=200)
        for noise in (0.003, 0.02)
    },
    "drift": lambda: made(plain, drifted(0.3), rows=64, length=60),
    "two decimals": lambda: with_values(
        made(plain, noisy(0.001), rows=128, sharpness=3.0),
        "rollout",
        lambda values: np.round(values, 2),
    ),
}


def test_metrics_of_size_are_those_with_a_guide():
    assert set(SIZES) == {name for name, metric in MAGNITUDE.metrics.items() if metric.guide}
    assert all(METRICS[name].from_totals for name in SIZES)


@pytest.mark.parametrize("name", CASES)
def test_a_metric_counts_no_worse_than_the_verdict(name, tmp_path, rcdiag):  # noqa: F811
    path = write(CASES[name](), tmp_path / "t.parquet")
    result = api.score(path)
    verdict = result.diagnosis.verdict
    levels = {name: value.level for name, value in result.mismatch.items()}
    if verdict == "healthy":
        assert not {"warning", "error"} & set(levels.values())
    most = SEVERITIES.index(SEVERITY_OF_VERDICT.get(verdict, "note"))
    if verdict in ("healthy", "correctable"):
        graver = [f for f in result.findings if SEVERITIES.index(f.severity) > most]
        assert not [finding.slug for finding in graver if finding.slug in OF_NUMBERS]
    # Noise alone fails only by findings on its size, which the screen shows.
    noise = all(cause.slug in NOTHING_WRONG for cause in result.diagnosis.causes)
    shown = [finding.severity for finding in result.findings]
    if verdict in ("healthy", "correctable") and not noise:
        shown.append(SEVERITY_OF_VERDICT.get(verdict, "note"))
    worst = max(map(SEVERITIES.index, shown), default=0)
    for least in ("warning", "error"):
        ran = rcdiag("score", path, "--fail-on", least, "-q", "--preset", "disabled")
        if verdict in ("healthy", "correctable"):
            assert ran.code == int(worst >= SEVERITIES.index(least)), ran.err


def test_noise_that_long_rows_add_up_is_correctable_and_does_not_fail(tmp_path, rcdiag):  # noqa: F811
    path = write(made(plain, noisy(0.03), rows=32, length=300), tmp_path / "t.parquet")
    ran = rcdiag("score", path, "--fail-on", "warning")
    assert ran.out.startswith("correctable   engine-noise, ")
    assert ran.code == 0, ran.err


def test_what_is_expected_of_rounding_is_a_bound(tmp_path, rcdiag):  # noqa: F811
    """Quiet engines leave more effective sequences than typical rounding at these lengths."""
    case = made(plain, noisy(0.003), rows=32, length=400)
    screen = rcdiag("score", write(case, tmp_path / "t.parquet")).out
    (line,) = [line for line in screen.splitlines() if line.startswith("ess_seq (")]
    value, bound = float(line.split()[2]), float(line.split("≥")[1].split()[0])
    assert value > 0.9
    assert bound < 0.7


def test_the_ess_of_the_summary_has_the_interval_of_the_metric(tmp_path):
    result = api.score(write(CASES["drift"](), tmp_path / "t.parquet"))
    ess = effective_share(result.mismatch["ess_seq"], result.num_sequences)
    assert "(" in ess
    assert f" leave an ESS of {ess} of 64 sequences" in result.diagnosis.summary


@pytest.mark.parametrize(("difference", "size"), [(0.004, "healthy"), (0.03, "correctable")])
def test_short_rows_are_healthy_only_within_every_guide(difference, size):
    case = made(plain, noisy(0.01), rows=200, length=6)
    sign = np.random.default_rng(0).choice([-1.0, 1.0], len(case.mask))
    even = replace(
        case,
        log_probs={
            "rollout": np.full(len(case.mask), -0.7),
            "old": -0.7 + difference * sign,
        },
    )
    tokens = even.tokens
    k3 = float(np.mean(np.expm1(tokens.log_ratio) - tokens.log_ratio))
    assert 6 * k3 < 0.02  # by its sequences alone it would be healthy
    assert ("prob_diff_mean" in beyond_guides(suite_of(even))) == (size == "correctable")
    assert by_size(Features(even)) == size


def test_metrics_of_size_equal_those_of_score(tmp_path):
    case = counted(made(plain, drifted(0.3), rows=64, length=60))
    levels = api.score(write(case, tmp_path / "t.parquet")).mismatch
    beyond = {name for name in SIZES if levels[name].level in ("warning", "error")}
    assert beyond <= set(beyond_guides(suite_of(case)))
    assert beyond & MEANS


def test_few_digits_are_not_taken_for_another_sampler(tmp_path, rcdiag):  # noqa: F811
    path = write(CASES["two decimals"](), tmp_path / "t.parquet")
    scored, compared = api.score(path), api.compare(path)
    assert scored.diagnosis.verdict == "healthy"
    assert scored.diagnosis.causes[0].slug == "stored-rounded"
    for values in (scored.mismatch, compared.pairs["rollout->old"].mismatch):
        assert abs(values["ratio_mean_z"].value) > 4.0
        assert values["ratio_mean_z"].level == "unknown"


def test_a_verdict_on_another_pair_does_not_limit_levels(tmp_path):
    case = made(plain, noisy(0.001), rows=64, length=60)
    far = with_values(case, "old", lambda values: values - 1.0).log_probs["old"]
    columns = {**case.log_probs, "far": far}
    path = write(replace(case, log_probs=columns), tmp_path / "t.parquet")
    result = api.score(path, target="far")
    assert result.diagnosis.pair["trainer"] == "old"
    found = {finding.slug: finding.severity for finding in result.findings}
    assert found["mismatch-above-guide"] == "error"


@pytest.mark.parametrize("name", ["stale", "moe", "temperature"])
def test_a_number_has_one_level(name):
    table = Path(__file__).parents[2] / "sample_data" / f"{name}.parquet"
    scored, compared = api.score(table, presets=["disabled"]), api.compare(table)
    for finding in scored.findings:
        if finding.slug in OF_NUMBERS:
            assert {scored.mismatch[one].level for one in finding.evidence} == {finding.severity}
    assert compared.pairs["rollout->old"].mismatch == scored.mismatch
    for gauge in gauges(scored.mismatch, scored.num_sequences):
        assert gauge.level == scored.mismatch[gauge.name].level
        bands = [level for low, high, level in gauge.bands if low <= (gauge.at or 0.0) <= high]
        assert gauge.level in {*bands, "unknown"}, gauge


def test_every_preset_has_one_level_in_score_and_replay(tmp_path):
    """A large drift: truncation, rejection and small ESS give presets each of the levels."""
    case = counted(made(plain, drifted(0.6), rows=64, length=60))
    advantage = np.resize([1.0, -1.0], 64)
    samples = Path(__file__).parents[2] / "sample_data"
    drifting = write(case, tmp_path / "t.parquet", advantage=advantage)
    seen = []
    for table in (drifting, samples / "stale.parquet", samples / "rollouts.parquet"):
        scored, replayed = api.score(table), api.replay(table)
        of_step = scored.steps.get(str(replayed.step), scored)
        levels = {name: one.level for name, one in of_step.corrections.items()}
        alone = [name for name, level in levels.items() if level is None]
        assert alone == ["bypass_ppo_clip"]  # its PPO ratio alone corrects: replay judges that
        for name in levels.keys() - set(alone):
            assert replayed.presets[name].health.verdict == levels[name], name
            seen.append(levels[name])
    assert set(seen) == {"ok", "warning", "error"}


@pytest.mark.parametrize("named", [False, True])
def test_presets_fail_a_healthy_table_only_if_the_user_named_them(named, tmp_path):
    """Two engines' rounding on short rows: bounds on geometric means reject most of them."""
    case = made(plain, noisy(0.01), rows=200, length=6)
    path = write(case, tmp_path / "t.parquet", advantage=np.resize([1.0, -1.0], 200))
    presets = ["decoupled_geo_rs"] if named else ()
    result = api.replay(path, presets=presets)
    assert result.diagnosis.verdict == "healthy"
    (unsafe,) = [finding for finding in result.findings if finding.slug == "unsafe-update"]
    assert unsafe.severity == ("warning" if named else "note")
    assert "train without a correction" in unsafe.fix
    in_score = [f for f in api.score(path, presets=presets).findings if f.slug == unsafe.slug]
    assert [(f.severity, f.fix) for f in in_score] == [("warning", unsafe.fix)] * named


def test_the_reversed_pair_has_no_graver_level_and_no_judgement_of_who_sampled(tmp_path):
    case = counted(made(plain, drifted(0.3), rows=64, length=60))
    result = api.compare(write(case, tmp_path / "t.parquet"))
    assert result.diagnosis.verdict == "correctable"
    levels = {name: one.level for name, one in result.pairs["old->rollout"].mismatch.items()}
    assert "warning" in levels.values()
    assert "error" not in levels.values()
    assert levels["kappa"] == levels["ratio_mean_z"] == "unknown"
