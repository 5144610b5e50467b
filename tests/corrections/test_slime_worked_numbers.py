"""Numbers of slime's own helper, at commit 624b824a8, on a toy batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rcdiag.results import CorrectionResult
from tests.corrections.builders import Padded, padded, result_of

OLD = [[-0.5, -1.0, -2.0, 0, 0, 0], [-0.1, -0.2, -0.3, -0.1, -5.0, -0.2]]
ROLLOUT = [[-0.4, -1.1, -1.0, 0, 0, 0], [-0.1, -0.25, -0.2, 0.0, -2.0, -0.2]]
MASK = [[1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 1, 1]]
TOY = Padded(np.array(OLD), np.array(ROLLOUT), np.array(MASK, bool))

OFF_POLICY = {
    "training_log_ppl": 1.163333,
    "training_ppl": 3.200602,
    "rollout_log_ppl": 0.691667,
    "rollout_ppl": 2.017114,
    "kl": 0.471667,
    "k3_kl": 0.268571,
    "log_ppl_diff": 0.471667,
    "log_ppl_abs_diff": 0.471667,
    "ppl_ratio": 1.618022,
    "chi2_token": -0.244784,
    "chi2_seq": -0.931211,
}
WEIGHTS = {
    "tis_weight_before_bound": 0.796904,
    "tis_truncate_fraction": 0.0,
    "tis_weight_after_bound": 0.796904,
    "rs_mask_fraction_low": 0.266667,
    "rs_mask_fraction_high": 0.0,
    "rs_catastrophic_token_fraction": 0.0,
    "rs_catastrophic_seq_fraction": 0.0,
    "is_ratio_mean_after_tis_rs": 0.796904,
    "batch_norm_factor": 0.797973,
    "is_ratio_mean_final": 0.998661,
    "is_ratio_min_final": 0.261705,
    "is_ratio_max_final": 1.351200,
}


def run(**config: Any) -> CorrectionResult:
    return result_of("slime", config, TOY)


def holds(result: CorrectionResult, **wanted: float) -> bool:
    outcome = {name: result.metrics[f"mis_{name}"] for name in wanted}
    return outcome == pytest.approx(wanted, abs=1e-6)


def test_the_shipped_settings():
    result = run()
    assert holds(result, **OFF_POLICY, **WEIGHTS)
    assert len(result.metrics) == len(OFF_POLICY) + len(WEIGHTS)
    # A keeps two of its tokens, B four.
    assert (result.kept_tokens, result.kept_sequences) == (6, 2)
    # The weights that slime applies, before it divides them by 0.797973.
    final = [1.133920, 1.384973, 0.461017, 1.253175, 1.317427, 1.133920, 0.062392, 1.253175]
    assert result.weight_sum / 0.797973 == pytest.approx(sum(final), rel=1e-5)


def test_clip_mode():
    result = run(tis_mode="clip")
    assert holds(result, tis_clip_fraction_low=0.266667, tis_clip_fraction_high=0.0)
    assert holds(result, tis_weight_before_bound=0.796904, tis_weight_after_bound=0.863946)
    assert "mis_tis_truncate_fraction" not in result.metrics


def test_mask_mode_rejects_and_leaves_the_weights():
    result = run(tis_mode="mask", use_rs=False)
    assert holds(result, tis_mask_fraction_low=0.266667, tis_mask_fraction_high=0.0)
    assert holds(result, tis_weight_before_bound=0.796904, tis_weight_after_bound=0.796904)
    assert holds(result, is_ratio_mean_final=0.998661, is_ratio_min_final=0.261705)
    assert (result.kept_tokens, result.kept_sequences) == (6, 2)


def test_the_veto_rejects_the_whole_sequence():
    result = run(rs_veto_threshold=0.1)
    assert holds(result, rs_catastrophic_token_fraction=0.1, rs_catastrophic_seq_fraction=0.5)
    assert (result.kept_tokens, result.kept_sequences) == (2, 1)


def test_both_at_sequence_level_with_a_veto():
    result = run(tis_level="sequence", rs_level="sequence", rs_veto_threshold=0.1)
    assert holds(result, batch_norm_factor=0.207619, is_ratio_mean_final=1.0)
    assert holds(result, is_ratio_min_final=1.0, is_ratio_max_final=1.0)
    assert (result.kept_tokens, result.kept_sequences) == (0, 0)
    # Weights 1.771895 and 0.228105 after division.
    total = (3 * 1.771895 + 5 * 0.228105) * 0.207619
    assert result.weight_sum == pytest.approx(total, rel=1e-5)


def test_without_tis_nothing_is_rejected():
    result = run(use_tis=False)
    assert holds(result, **OFF_POLICY)
    assert len(result.metrics) == len(OFF_POLICY)
    assert (result.kept_tokens, result.weight_sum) == (8, None)


def test_rejection_defaults_to_the_bounds_of_the_weights():
    result = run(tis_lower_bound=None, tis_upper_bound=1.08)
    # [1 / 1.08, 1.08]: A loses all three tokens, B keeps its first, second and last.
    assert (result.kept_tokens, result.kept_sequences) == (3, 1)
    assert run(rs_lower_bound=0.3, rs_upper_bound=1.2).kept_tokens == 7


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_weights_are_not_divided_by_a_tiny_mean(level):
    result = result_of("slime", {"tis_level": level}, padded([[-25.0], [-30.0]]))
    assert holds(result, batch_norm_factor=1.0)
    assert result.metrics["mis_is_ratio_mean_final"] == pytest.approx(np.exp(-20.0))


def test_a_row_without_a_token_adds_zero_to_every_mean():
    batch = padded([[0.5, -0.5], []])
    result = result_of("slime", {"use_rs": False}, batch).metrics
    alone = result_of("slime", {"use_rs": False}, padded([[0.5, -0.5]])).metrics
    assert result == pytest.approx({name: value / 2.0 for name, value in alone.items()})
