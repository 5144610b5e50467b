"""Identities that hold for every batch; inequalities are in test_inequalities.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.statistics.metrics import METRICS
from tests.builders import make_pair, make_state, metrics, values_of
from tests.statistics.strategies import Batch, batches, log_probs, log_ratios, scaled, shifted

# Correlation of nearly constant probabilities is rounding noise, tested elsewhere; so is
# everything computed from a difference of nearly equal numbers.
ILL_CONDITIONED = {
    "prob_pearson",
    "variance_ratio",
    "ratio_mean_z",
    "ratio_mean_seq_z",
    "kappa_se",
}


def assert_same(
    result: dict[str, float],
    expected: dict[str, float],
    rel: float = 1e-9,
    but: tuple[str, ...] = (),
) -> None:
    for name in set(METRICS) - ILL_CONDITIONED - set(but):
        absolute = 1e-6 if "_std" in name else 1e-9
        assert result[name] == pytest.approx(expected[name], rel=rel, abs=absolute, nan_ok=True), (
            name
        )


@given(st.lists(st.lists(log_probs(-50.0), max_size=8), min_size=1, max_size=6).filter(any))
def test_equal_policies_have_the_ideal_value_of_every_metric(behavior):
    for name, value in values_of(make_state(behavior, behavior)).items():
        ideal = METRICS[name].ideal
        if name == "prob_pearson":
            assert value is None or value == pytest.approx(1.0, abs=1e-3)
        elif ideal is not None and value is not None:
            assert value == pytest.approx(ideal, abs=1e-12), name


@given(batches(), st.integers(2, 4))
def test_a_batch_taken_several_times_has_the_same_metrics(batch, times):
    behavior, target = batch
    count_matters = [name for name in METRICS if "_abs_p" in name or "khat" in name]
    but = (*count_matters, "prob_diff_std", "top_share")
    assert_same(metrics(behavior * times, target * times), metrics(behavior, target), but=but)


@given(batches(), st.integers(2, 4))
def test_repeating_whole_clusters_keeps_errors_and_tests(batch, times):
    behavior, target = batch
    rows = list(range(len(behavior)))
    once = values_of(make_state(behavior, target, rows))
    result = values_of(make_state(behavior * times, target * times, rows * times))
    for name in ("ratio_mean_z", "ratio_mean_seq_z", "kappa_se"):
        if once[name] is not None and 1e-3 < abs(once[name]) < 1e3:
            assert result[name] == pytest.approx(once[name], rel=1e-3), name


@given(batches())
def test_empty_sequences_change_nothing(batch):
    behavior, target = batch
    assert metrics([[], *behavior, []], [[], *target, []]) == pytest.approx(
        metrics(behavior, target), nan_ok=True, rel=0, abs=0
    )


@given(batches())
def test_swapped_roles_negate_directed_metrics_and_keep_symmetric_ones(batch):
    behavior, target = batch
    one, other = metrics(behavior, target), metrics(target, behavior)
    for name in ("k1_kl", "k1_kl_seq", "log_ppl_diff_mean", "kappa"):
        assert other[name] == pytest.approx(-one[name], nan_ok=True), name
    assert other["behavior_ppl"] == pytest.approx(one["target_ppl"])
    assert other["log_ppl_diff_max"] == pytest.approx(-one["log_ppl_diff_min"])
    symmetric = ["k2_kl", "k2_kl_seq", "log_ppl_diff_abs_mean", "exp_abs_log_ratio_mean"]
    starts = ("log_ratio_", "prob_diff", "prob_spearman", "ratio_outside", "top_share")
    for name in [*symmetric, *(name for name in METRICS if name.startswith(starts))]:
        assert other[name] == pytest.approx(one[name], rel=1e-6, abs=1e-6, nan_ok=True), name


@given(batches())
def test_k3_of_swapped_roles_is_that_of_the_negated_log_ratio(batch):
    behavior, target = batch
    delta = -log_ratios(batch)
    assert metrics(target, behavior)["k3_kl"] == pytest.approx(np.mean(np.expm1(delta) - delta))


@given(batches(), st.floats(-5.0, 0.0))
def test_a_constant_on_both_sides_scales_perplexities_and_leaves_ratios(batch, constant):
    behavior, target = batch
    before = metrics(behavior, target)
    moved = [[[value + constant for value in row] for row in rows] for rows in batch]
    after = metrics(*moved)
    for name in ("behavior_ppl", "target_ppl"):
        assert after[name] == pytest.approx(before[name] * np.exp(-constant)), name
    of_probabilities = tuple(name for name in METRICS if name.startswith("prob_"))
    # A log-ratio on the edge of a count may fall to either side of it.
    counts = tuple(name for name in METRICS if name.startswith(("ratio_outside", "khat")))
    assert_same(
        after,
        before,
        1e-6,
        (*of_probabilities, *counts, "behavior_ppl", "target_ppl", "top_share", "kappa"),
    )


@given(batches(max_log_ratio=3.0), st.floats(-5.0, 5.0))
def test_normalised_metrics_do_not_depend_on_the_scale_of_weights(batch, constant):
    one, other = metrics(*batch), metrics(*shifted(batch, constant))
    for name in ("ess_token", "perplexity_ess_token", "chi2_token_self_normalised"):
        assert other[name] == pytest.approx(one[name], rel=1e-6, abs=1e-9), name
    of_sequences = [[[sum(row)] for row in rows if row] for rows in batch]
    one, other = metrics(*of_sequences), metrics(*shifted(of_sequences, constant))
    for name in ("ess_seq", "perplexity_ess_seq", "chi2_seq_self_normalised"):
        assert other[name] == pytest.approx(one[name], rel=1e-6, abs=1e-9), name


@given(batches(), st.floats(0.1, 3.0))
def test_scaled_log_ratios_scale_k2_by_the_square_and_log_ratios_by_themselves(batch, factor):
    one, other = metrics(*batch), metrics(*scaled(batch, factor))
    for name in ("k2_kl", "k2_kl_seq"):
        assert other[name] == pytest.approx(factor**2 * one[name], rel=1e-6, abs=1e-12), name
    for name in METRICS:
        if name.startswith(("log_ratio_abs_p", "log_ppl_diff")) or name == "k1_kl":
            assert other[name] == pytest.approx(factor * one[name], rel=1e-6, abs=1e-9), name


@given(batches())
def test_two_sequences_put_end_to_end_add_up(batch: Batch):
    joined = [[[value for row in rows for value in row]] for rows in batch]
    one, whole = metrics(*batch), metrics(*joined)
    tokens = make_pair(*batch).lengths
    filled = int((tokens > 0).sum())
    assert whole["k1_kl_seq"] == pytest.approx(one["k1_kl_seq"] * filled, abs=1e-9)
    assert whole["log_ppl_diff_mean"] == pytest.approx(one["k1_kl"], abs=1e-9)
    of_tokens = [
        name for name in METRICS if name.endswith("_token") or name.startswith("prob_diff")
    ]
    for name in (*of_tokens, "k1_kl", "k2_kl", "k3_kl", "kappa", "ratio_mean"):
        assert whole[name] == pytest.approx(one[name], rel=1e-6, abs=1e-6, nan_ok=True), name


@given(st.lists(st.tuples(log_probs(), log_probs()), min_size=1, max_size=8))
def test_both_levels_agree_for_sequences_of_one_token(tokens):
    result = metrics([[a] for a, _ in tokens], [[b] for _, b in tokens])
    pairs = {name: name.replace("_token", "_seq") for name in METRICS if "_token" in name}
    pairs |= {name: f"{name}_seq" for name in METRICS if f"{name}_seq" in METRICS}
    pairs["ratio_mean_z"] = "ratio_mean_seq_z"
    assert len(pairs) == 15
    for token, sequence in pairs.items():
        if token not in ILL_CONDITIONED:
            assert result[sequence] == pytest.approx(result[token], abs=1e-9, nan_ok=True), token


@given(st.floats(-3.0, 3.0))
def test_k3_is_k2_up_to_third_order_and_above_it_where_the_ratio_is_above_one(log_ratio):
    result = metrics([[-4.0]], [[-4.0 + log_ratio]])
    given_exactly = (-4.0 + log_ratio) + 4.0  # to the accuracy of float64
    difference = result["k3_kl"] - result["k2_kl"]
    bound = np.exp(abs(given_exactly)) * abs(given_exactly) ** 3 / 6
    assert abs(difference) <= bound + 1e-15
    assert difference * given_exactly >= -1e-15
