"""Rejection by every generation on the same batch, with numbers of verl's own code."""

from __future__ import annotations

import numpy as np
import pytest

from tests.corrections.test_verl_worked_numbers import BY_K, RATIOS, holds, run

OF_ROWS = (5, 3, 3)  # tokens of each row


def masked(result, tokens: float, sequences: float, prefix: str = "rollout_rs_") -> bool:
    return holds(result, prefix, masked_fraction=tokens, seq_masked_fraction=sequences)


def test_the_mask_mode_of_060_zeroes_weights_and_leaves_the_mask():
    config = {"rollout_is": True, "rollout_is_mode": "mask"}
    token = run("verl-0.6.0", rollout_is_threshold=1.2, **config)
    assert masked(token, 0.454545, 0.5, "rollout_is_")
    kept = np.exp([0.1, -0.05, 0.0, 0.02, -0.07, -0.1]).sum()
    assert (token.weight_sum, token.kept_tokens) == (pytest.approx(kept), 11)
    geometric = run("verl-0.6.0", rollout_is_level="geometric", rollout_is_threshold=1.2, **config)
    assert holds(geometric, "rollout_is_", eff_sample_size=0.982249, std=0.135655)
    assert geometric.weight_sum == pytest.approx(5.0)
    rows = run("verl-0.6.0", rollout_is_level="sequence", rollout_is_threshold=2.0, **config)
    assert masked(rows, 0.545455, 0.5, "rollout_is_")
    assert rows.weight_sum == pytest.approx(5.0)


def test_the_mask_mode_of_20251027_rejects():
    config = {"rollout_is": True, "rollout_is_mode": "mask"}
    token = run("verl-20251027", rollout_is_threshold=1.2, **config)
    assert masked(token, 0.454545, 0.5, "rollout_is_")
    assert (token.kept_tokens, token.kept_sequences) == (6, 2)
    rows = run("verl-20251027", rollout_is_level="sequence", rollout_is_threshold=2.0, **config)
    assert (rows.kept_tokens, rows.kept_sequences) == (5, 1)


@pytest.mark.parametrize("trainer", RATIOS)
def test_rejection_by_ratios(trainer):
    token = run(
        trainer, rollout_rs="token", rollout_rs_threshold=1.6, rollout_rs_threshold_lower=0.6
    )
    assert masked(token, 0.181818, 0.5)
    assert holds(token, "rollout_rs_", eff_sample_size=0.921318, std=0.307167)
    assert (token.kept_tokens, token.kept_sequences) == (9, 3)
    for level, upper in (("sequence", 2.0), ("geometric", 1.2)):
        rows = run(trainer, rollout_rs=level, rollout_rs_threshold=upper)
        assert masked(rows, 0.545455, 0.5), level
        assert (rows.kept_tokens, rows.kept_sequences) == (5, 1), level


@pytest.mark.parametrize("trainer", RATIOS)
def test_the_veto_rejects_whole_rows(trainer):
    result = run(trainer, rollout_is=None, rollout_token_veto_threshold=0.5)
    expected = {"veto_fraction": 0.25, "catastrophic_token_fraction": 0.090909}
    assert holds(result, "rollout_is_", **expected)
    assert (result.kept_tokens, result.kept_sequences) == (8, 2)


@pytest.mark.parametrize("trainer", BY_K)
@pytest.mark.parametrize("option", ["token_k2", "token_k3"])
def test_rejection_of_tokens_by_k(trainer, option):
    result = run(trainer, rollout_is=None, rollout_rs=option, rollout_rs_threshold=0.1)
    assert holds(result, rollout_rs_masked_fraction=0.272727)
    assert result.kept_tokens == 8


@pytest.mark.parametrize("trainer", BY_K)
@pytest.mark.parametrize(
    ("option", "bound"),
    [("seq_mean_k3", 0.05), ("seq_max_k2", 0.15), ("seq_max_k3", 0.15), ("seq_sum_k2", 0.3)],
)
def test_rejection_of_rows_by_k(trainer, option, bound):
    result = run(trainer, rollout_is=None, rollout_rs=option, rollout_rs_threshold=bound)
    # Rows without a token count in the combined fraction, and not in that of the option.
    assert masked(result, 0.545455, 0.5)
    assert masked(result, 0.545455, 0.666667, f"rollout_rs_{option}_")
    assert (result.kept_tokens, result.kept_sequences) == (5, 1)


@pytest.mark.parametrize("trainer", BY_K)
def test_two_options_at_once(trainer):
    result = run(
        trainer,
        rollout_is=None,
        rollout_rs="token_k1,seq_max_k3",
        rollout_rs_threshold="0.5_1.9,0.15",
    )
    assert holds(result, rollout_rs_masked_fraction=0.545455)
    assert holds(result, rollout_rs_token_k1_masked_fraction=0.090909)


@pytest.mark.parametrize("trainer", BY_K)
def test_statistics_of_k1(trainer):
    result = run(trainer, rollout_is=None, rollout_rs="token_k1", rollout_rs_threshold="0.6_1.6")
    expected = {"mean": 0.018182, "max": 0.9, "min": -0.6, "std": 0.298161}
    rows = {"seq_mean": 0.022222, "seq_std": 0.467063, "seq_max": 0.5, "seq_min": -0.433333}
    fractions = {"fraction_high": 0.181818, "fraction_low": 0.090909}
    assert holds(result, "rollout_rs_token_k1_", **expected, **rows, **fractions)


# Row numbers that verl's code keeps, and those that its documents say it keeps.
MIRRORED = [
    ("seq_mean_k1", "0.6_1.2", (0, 1), (0, 2)),
    ("seq_mean_k1", "0.8_1.6", (0,), (0, 1)),
    ("seq_sum_k1", "0.25_2.0", (0, 1), (0,)),
]


@pytest.mark.parametrize("trainer", BY_K)
@pytest.mark.parametrize(("option", "bounds", "code", "documents"), MIRRORED)
def test_k1_bounds_apply_to_one_over_the_ratio(trainer, option, bounds, code, documents):
    result = run(trainer, rollout_is=None, rollout_rs=option, rollout_rs_threshold=bounds)
    assert result.kept_tokens == sum(OF_ROWS[row] for row in code)
    assert result.kept_sequences == len(code)
    assert result.actual["kept_tokens_by_documents"] == sum(OF_ROWS[row] for row in documents)
    assert result.actual["kept_sequences_by_documents"] == len(documents)
    lower, upper = map(float, bounds.split("_"))
    sets = result.actual["accepted_ratios"][option]
    assert sets["code"] == pytest.approx([1.0 / upper, 1.0 / lower])
    assert sets["documents"] == pytest.approx([lower, upper])


@pytest.mark.parametrize("trainer", BY_K)
@pytest.mark.parametrize(("bounds", "code", "documents"), [("0.6_1.6", 8, 9), ("0.7_2.0", 8, 9)])
def test_token_k1_bounds_apply_to_one_over_the_ratio(trainer, bounds, code, documents):
    result = run(trainer, rollout_is=None, rollout_rs="token_k1", rollout_rs_threshold=bounds)
    assert (result.kept_tokens, result.actual["kept_tokens_by_documents"]) == (code, documents)


def test_070_applies_the_same_bounds_to_the_ratio():
    old = run(
        "verl-0.7.0",
        rollout_is=None,
        rollout_rs="token",
        rollout_rs_threshold=1.6,
        rollout_rs_threshold_lower=0.6,
    )
    new = run("verl-0.9", rollout_is=None, rollout_rs="token_k1", rollout_rs_threshold="0.6_1.6")
    assert old.kept_tokens == new.actual["kept_tokens_by_documents"] == 9
