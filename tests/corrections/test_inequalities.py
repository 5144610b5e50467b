"""Bounds and orders that hold on every batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.trainers import TRAINERS
from rcdiag.trainers.verl.correction import OPTIONS
from tests.corrections.batches import batches
from tests.corrections.builders import plan_of, presets_of, result_of, results_of, without_prefix
from tests.corrections.comparisons import changed_outcome
from tests.corrections.configs import configs_of
from tests.examples import dear

every_trainer = pytest.mark.parametrize("trainer", TRAINERS)
K_TRAINERS = pytest.mark.parametrize("trainer", ["verl-0.7.1", "verl-0.8.0", "verl-0.9"])
# Powers of two: their reciprocals, and the logs of both, are exact.
POWERS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@every_trainer
@given(batch=batches(kinds=("equal",)))
@dear(10)
def test_identical_policies_need_no_correction(trainer, batch):
    tokens = int(batch.mask.sum())
    for name, result in results_of(presets_of(trainer), batch).items():
        assert (result.kept_tokens, result.weight_sum) in ((tokens, None), (tokens, tokens)), name
        assert result.kept_sequences == batch.mask.any(axis=1).sum(), name
        ends = ("_kl", "/kl", "ppl_diff", "_fraction", "k3_kl", "fraction_high", "oob_ratio")
        gaps = {key: value for key, value in result.metrics.items() if key.endswith(ends)}
        logs_many = trainer.startswith(("verl", "slime")) and not name.endswith("_by_flag")
        logs_many &= trainer != "verl-20250826"  # which logs no weight metrics
        assert len(gaps) >= 3 or not logs_many, name
        assert set(gaps.values()) <= {0.0}, name
        assert result.actual["ess_token_applied"] == pytest.approx(1.0, abs=1e-12), name
        assert result.actual["ess_seq_applied"] == pytest.approx(1.0, abs=1e-12), name
        assert result.actual["lost_target_mass_token"] == 0.0, name
        assert result.actual["lost_target_mass_seq"] == 0.0, name
        assert result.actual["truncation_loss"] in (None, 0.0), name
        assert result.actual["bias_bound"] in (None, 0.0), name
        means = [value for key, value in result.metrics.items() if key.endswith("_is_mean")]
        assert means == pytest.approx([1.0] * len(means), abs=1e-7), name


@every_trainer
@given(batch=batches(), data=st.data())
@dear(50)
def test_own_metrics_are_within_their_ranges(trainer, batch, data):
    """Where nothing is rejected or zeroed no mass is lost; weights alone reject nothing."""
    plan = plan_of(trainer, data.draw(configs_of(trainer)))
    result, correction = results_of(plan, batch)["it"], plan.corrections["it"]
    actual, tokens = result.actual, batch.mask.sum()
    for name in ("ess_token_applied", "ess_seq_applied"):
        assert actual[name] is None or 0.0 < actual[name] <= 1.0 + 1e-12, name
    for name in ("lost_target_mass_token", "lost_target_mass_seq", "unsafe_tokens"):
        assert actual[name] is None or 0.0 <= actual[name] <= 1.0, name
    for name in ("keep_length_correlation", "keep_reward_correlation"):
        assert actual[name] is None or abs(actual[name]) <= 1.0 + 1e-12, name
    assert actual["truncation_loss"] is None or 0.0 <= actual["truncation_loss"] <= 1.0
    assert 0 <= result.kept_tokens <= actual["denominator_all"] == tokens
    assert actual["denominator_kept"] == result.kept_tokens
    assert result.kept_sequences <= result.kept_tokens
    lost = {actual[f"lost_target_mass_{level}"] for level in ("token", "seq")}
    if not (correction.discards_tokens or correction.discards_sequences):
        assert lost <= {0.0, None}
    if result.kept_tokens == 0:
        assert lost <= {1.0, None}
    if not correction.rejections and (correction.veto is None or correction.veto_on_weights):
        assert result.kept_tokens == tokens
        assert result.kept_sequences == batch.mask.any(axis=1).sum()


@pytest.mark.parametrize("trainer", ["verl-0.8.0", "verl-0.9"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@given(batch=batches(kinds=("near", "equal")))
@dear(30)
def test_icepop_and_truncation_agree_inside_the_bounds(trainer, level, batch):
    reach = np.exp(np.abs(batch.log_ratio).sum(axis=1).max()) * 1.01
    popped, truncated = (
        result_of(trainer, {"rollout_is": level, "rollout_is_threshold": threshold}, batch)
        for threshold in (f"{1 / reach}_{reach}", float(reach))
    )
    metrics = without_prefix(popped.metrics)
    assert metrics.pop("rollout_is_oob_ratio") == 0.0
    assert metrics == pytest.approx(without_prefix(truncated.metrics), rel=1e-12, abs=1e-12)
    assert popped.weight_sum == pytest.approx(truncated.weight_sum)
    assert popped.actual["ess_token_applied"] == truncated.actual["ess_token_applied"]


def k_config(option: str, lower: float, upper: float) -> dict[str, Any]:
    text = f"{lower!r}_{upper!r}" if option.endswith("k1") else repr(upper)
    return {"rollout_is": None, "rollout_rs": option, "rollout_rs_threshold": text}


@K_TRAINERS
@given(
    batch=batches(),
    option=st.sampled_from(OPTIONS),
    bounds=st.lists(st.sampled_from(POWERS), min_size=4, max_size=4).map(sorted),
)
@dear(40)
def test_wider_bounds_of_k_keep_more(trainer, batch, option, bounds):
    wide = result_of(trainer, k_config(option, bounds[0], bounds[3]), batch)
    narrow = result_of(trainer, k_config(option, bounds[1], bounds[2]), batch)
    assert narrow.kept_tokens <= wide.kept_tokens
    assert narrow.kept_sequences <= wide.kept_sequences
    lost = [item.actual["lost_target_mass_token"] for item in (wide, narrow)]
    assert None in lost or lost[0] <= lost[1] + 1e-12


@pytest.mark.parametrize("trainer", ["verl-0.6.1", "verl-20251203", "verl-0.7.0"])
@given(
    batch=batches(),
    level=st.sampled_from(("token", "sequence", "geometric")),
    bounds=st.lists(st.sampled_from(POWERS), min_size=4, max_size=4).map(sorted),
)
@dear(40)
def test_wider_bounds_of_ratios_keep_more(trainer, batch, level, bounds):
    wide, narrow = (
        result_of(
            trainer,
            {
                "rollout_rs": level,
                "rollout_rs_threshold": upper,
                "rollout_rs_threshold_lower": lower,
            },
            batch,
        )
        for lower, upper in ((bounds[0], bounds[3]), (bounds[1], bounds[2]))
    )
    assert narrow.kept_tokens <= wide.kept_tokens
    assert narrow.kept_sequences <= wide.kept_sequences


@K_TRAINERS
@given(
    batch=batches(),
    option=st.sampled_from(("token_k1", "seq_sum_k1", "seq_mean_k1")),
    bounds=st.lists(st.sampled_from(POWERS), min_size=2, max_size=2).map(sorted),
)
@dear(40)
def test_k1_as_documented_equals_the_code_with_mirrored_bounds(trainer, batch, option, bounds):
    lower, upper = bounds
    ours = result_of(trainer, k_config(option, lower, upper), batch)
    swapped = result_of(trainer, k_config(option, 1.0 / upper, 1.0 / lower), batch)
    if lower == 1.0 / upper:
        assert "kept_tokens_by_documents" not in ours.actual
        assert changed_outcome(ours, swapped) == []
        return
    assert ours.actual["kept_tokens_by_documents"] == swapped.kept_tokens
    assert ours.actual["kept_sequences_by_documents"] == swapped.kept_sequences
    assert swapped.actual["kept_tokens_by_documents"] == ours.kept_tokens
