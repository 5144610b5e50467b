"""Numbers of verl's own code on a small batch, computed once with each package."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rcdiag.results import CorrectionResult
from rcdiag.trainers import TRAINERS
from tests.corrections.builders import Padded, result_of, without_prefix

RATIOS = ("verl-0.6.1", "verl-20251203", "verl-0.7.0")
BY_K = ("verl-0.7.1", "verl-0.8.0", "verl-0.9")
APPLIED = ("verl-0.8.0", "verl-0.9")

ROLLOUT = [[-1, -0.5, -2, -0.1, -3], [-2, -1.5, -1, 0, 0], [-0.7, -0.2, -1.1, -4, 0], [0] * 5]
LOG_RATIO = [[0.1, -0.05, 0, 0.02, -0.07], [0.6, 0.4, 0.3, 0, 0], [-0.5, -0.1, 0, -0.9, 0], [0] * 5]
MASK = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [0] * 5]
F1 = Padded(np.array(ROLLOUT) + LOG_RATIO, np.array(ROLLOUT, float), np.array(MASK, bool))


def run(trainer: str, **config: Any) -> CorrectionResult:
    return result_of(trainer, config, F1)


def holds(result: CorrectionResult, prefix: str = "", **wanted: float) -> bool:
    """Compare with numbers that were computed in float32 and rounded to six decimals."""
    metrics = without_prefix(result.metrics)
    outcome = {name: metrics[prefix + name] for name in wanted}
    return outcome == pytest.approx(wanted, abs=2e-6)


OFF_POLICY = {
    "kl": 0.018182,
    "k3_kl": 0.071885,
    "training_ppl": 4.023016,
    "rollout_ppl": 3.586506,
    "training_log_ppl": 1.13,
    "rollout_log_ppl": 1.113333,
    "log_ppl_diff": 0.016667,
    "log_ppl_abs_diff": 0.233333,
    "log_ppl_diff_max": 0.5,
    "log_ppl_diff_min": -0.433333,
    "ppl_ratio": 1.074266,
}
CHI2 = {"chi2_token": 0.250554, "chi2_seq": 2.878381}


@pytest.mark.parametrize("trainer", [*RATIOS, *BY_K])
def test_off_policy_numbers(trainer):
    assert holds(run(trainer, rollout_is=None), **OFF_POLICY, **CHI2)


@pytest.mark.parametrize("trainer", ["verl-0.6.0", "verl-20251027"])
def test_off_policy_numbers_under_their_first_names(trainer):
    result = run(trainer, rollout_is=True, rollout_is_threshold=2.0)
    assert holds(result, "mismatch_", **OFF_POLICY)
    assert not any("chi2" in name for name in result.metrics)


def test_metrics_carry_the_prefix_of_their_generation():
    for name, trainer in TRAINERS.items():
        if trainer.family not in ("verl", "slime"):
            continue
        result = result_of(name, next(iter(trainer.presets.values())), F1)
        prefix = "mismatch/" if name in ("verl-0.6.0", "verl-20251027") else "rollout_corr/"
        prefix = "mis_" if name == "slime" else prefix
        assert all(key.startswith(prefix) for key in result.metrics), name


ROWS_OF_TOKENS = {"seq_mean": 0.798928, "seq_std": 0.652166, "seq_max": 1.554601, "seq_min": 0.0}


@pytest.mark.parametrize("trainer", ["verl-0.6.0", "verl-20251027"])
def test_truncated_token_weights_of_060(trainer):
    result = run(trainer, rollout_is=True, rollout_is_threshold=2.0)
    expected = {"mean": 1.053703, "max": 1.822119, "min": 0.40657, "std": 0.360544}
    assert holds(result, "rollout_is_", **expected, **ROWS_OF_TOKENS)
    fractions = {"ratio_fraction_high": 0.0, "ratio_fraction_low": 0.090909}
    assert holds(
        result, "rollout_is_", eff_sample_size=0.896689, seq_max_deviation=1.0, **fractions
    )
    assert holds(result, "rollout_is_", seq_fraction_high=0.0, seq_fraction_low=0.25)


def test_only_060_logs_percentiles():
    result = run("verl-0.6.0", rollout_is=True, rollout_is_threshold=2.0)
    expected = {"p25": 0.918616, "p50": 1.0, "p75": 1.227515, "p95": 1.656972, "p99": 1.789089}
    assert holds(result, "rollout_is_", **expected)
    later = run("verl-20251027", rollout_is=True, rollout_is_threshold=2.0)
    assert set(result.metrics) - set(later.metrics) == {
        f"mismatch/rollout_is_{p}" for p in expected
    }


FRACTIONS = {"ratio_fraction_high": 0.272727, "ratio_fraction_low": 0.181818}


@pytest.mark.parametrize("trainer", [*RATIOS, "verl-0.7.1"])
def test_token_weights_as_raw_ratios(trainer):
    result = run(trainer, rollout_is="token", rollout_is_threshold=1.2)
    expected = {"mean": 1.053703, "max": 1.822119, "min": 0.40657, "std": 0.134863}
    assert holds(result, "rollout_is_", **expected, **ROWS_OF_TOKENS, **FRACTIONS)
    assert holds(result, "rollout_is_", eff_sample_size=0.982699, seq_max_deviation=1.0)
    assert holds(result, "rollout_is_", seq_fraction_high=0.25, seq_fraction_low=0.5)


@pytest.mark.parametrize(("trainer", "high"), zip(APPLIED, (0.0, 0.25), strict=True))
def test_token_weights_as_applied(trainer, high):
    result = run(trainer, rollout_is="token", rollout_is_threshold=1.2)
    expected = {"mean": 0.956994, "max": 1.2, "min": 0.40657, "std": 0.240096}
    assert holds(result, "rollout_is_", eff_sample_size=0.940784, **expected, **FRACTIONS)
    rows = {"seq_mean": 0.710278, "seq_std": 0.527366, "seq_max": 1.2, "seq_min": 0.0}
    assert holds(result, "rollout_is_", seq_max_deviation=1.0, **rows)
    # The high fraction of 0.8.0 can never be anything but 0 (verl #6806).
    assert holds(result, "rollout_is_", seq_fraction_high=high, seq_fraction_low=0.5)


ROWS_OUTSIDE = {"ratio_fraction_high": 0.25, "ratio_fraction_low": 0.25}


@pytest.mark.parametrize("trainer", [*RATIOS, "verl-0.7.1"])
def test_sequence_weights_as_raw_ratios(trainer):
    result = run(trainer, rollout_is="sequence", rollout_is_threshold=2.0)
    expected = {"mean": 1.516116, "std": 0.567727, "eff_sample_size": 0.800256}
    assert holds(result, "rollout_is_", max=3.669297, min=0.22313, **expected, **ROWS_OUTSIDE)
    rows = {"seq_mean": 1.223107, "seq_std": 1.686176, "seq_max": 3.669297}
    assert holds(result, "rollout_is_", seq_max_deviation=2.669297, **rows)
    assert holds(result, "rollout_is_", seq_fraction_high=0.25, seq_fraction_low=0.5)


@pytest.mark.parametrize(("trainer", "high"), zip(APPLIED, (0.0, 0.25), strict=True))
def test_sequence_weights_as_applied(trainer, high):
    result = run(trainer, rollout_is="sequence", rollout_is_threshold=2.0)
    expected = {"mean": 1.060854, "std": 0.6585, "eff_sample_size": 0.721865}
    assert holds(result, "rollout_is_", max=3.669297, min=0.22313, **expected, **ROWS_OUTSIDE)
    rows = {"seq_mean": 0.805783, "seq_std": 0.904184, "seq_max": 2.0}
    assert holds(result, "rollout_is_", seq_max_deviation=1.0, **rows)
    assert holds(result, "rollout_is_", seq_fraction_high=high, seq_fraction_low=0.5)


@pytest.mark.parametrize("trainer", [*RATIOS, *BY_K])
def test_batch_normalisation(trainer):
    token = run(
        trainer, rollout_is="token", rollout_is_threshold=1.2, rollout_is_batch_normalize=True
    )
    assert holds(token, rollout_is_batch_norm_factor=0.956994)
    rows = run(trainer, rollout_is="sequence", rollout_is_batch_normalize=True)
    # Up to 0.6.1 rows without a token count, with a weight of 0.
    all_rows = trainer in ("verl-0.6.1", "verl-20251203")
    assert holds(rows, rollout_is_batch_norm_factor=0.805783 if all_rows else 1.074377)


@pytest.mark.parametrize("trainer", APPLIED)
def test_icepop(trainer):
    result = run(trainer, rollout_is="token", rollout_is_threshold="0.7_1.4")
    expected = {"oob_ratio": 0.363636, "mean": 0.660336, "std": 0.511751, "seq_mean": 0.438341}
    assert holds(result, "rollout_is_", eff_sample_size=0.624764, **expected)
    fractions = {"ratio_fraction_high": 0.181818, "ratio_fraction_low": 0.181818}
    assert holds(result, "rollout_is_", **fractions)
    kept = np.exp([0.1, -0.05, 0.0, 0.02, -0.07, 0.3, -0.1]).sum()
    assert result.weight_sum == pytest.approx(kept)
    assert (result.kept_tokens, result.kept_sequences) == (11, 3)
