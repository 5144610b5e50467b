"""Laws that hold for every batch (reference/theory.md 5.1)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.table import concatenate
from tests.builders import make_pair, make_sequences, metrics, metrics_of
from tests.statistics.strategies import batches, log_probs

# Correlation of nearly constant probabilities is rounding noise; it has tests of its own.
WELL_CONDITIONED = [name for name in METRICS if name != "prob_pearson"]


def assert_same(found: dict[str, float], wanted: dict[str, float], rel: float = 1e-9) -> None:
    for name in WELL_CONDITIONED:
        assert found[name] == pytest.approx(wanted[name], rel=rel, abs=1e-9), name


@given(st.lists(st.lists(log_probs(-50.0), max_size=8), min_size=1, max_size=6).filter(any))
def test_equal_policies_have_the_ideal_value_of_every_metric(behavior):
    for name, value in metrics(behavior, behavior).items():
        ideal = METRICS[name].ideal
        if name == "prob_pearson":
            assert np.isnan(value) or value == pytest.approx(1.0, abs=1e-3)
        elif ideal is not None:
            assert value == pytest.approx(ideal, abs=1e-12), name


@given(batches(), st.randoms(use_true_random=False))
def test_the_order_of_sequences_does_not_matter(batch, random):
    behavior, target = batch
    order = list(range(len(behavior)))
    random.shuffle(order)
    shuffled = metrics([behavior[i] for i in order], [target[i] for i in order])
    assert_same(shuffled, metrics(behavior, target))


@given(batches(), st.data())
def test_shards_add_up_to_their_union(batch, data):
    behavior, target = batch
    cut = data.draw(st.integers(0, len(behavior)))
    shards = [make_sequences(behavior[:cut], target[:cut])]
    shards.append(make_sequences(behavior[cut:], target[cut:]))
    assert_same(metrics_of(concatenate(shards)), metrics(behavior, target), rel=1e-12)


@given(batches(), st.integers(2, 4))
def test_a_batch_taken_several_times_has_the_same_metrics(batch, times):
    behavior, target = batch
    assert_same(metrics(behavior * times, target * times), metrics(behavior, target))


@given(batches())
def test_empty_sequences_change_nothing(batch):
    behavior, target = batch
    assert metrics([[], *behavior, []], [[], *target, []]) == pytest.approx(
        metrics(behavior, target), nan_ok=True, rel=0, abs=0
    )


@given(batches())
def test_swapped_roles_negate_k1_and_keep_what_is_symmetric(batch):
    behavior, target = batch
    one, other = metrics(behavior, target), metrics(target, behavior)
    assert other["k1_kl"] == pytest.approx(-one["k1_kl"])
    assert other["behavior_ppl"] == pytest.approx(one["target_ppl"])
    symmetric = ("k2_kl", "log_ratio_abs_mean", "log_ratio_abs_max", "prob_diff_mean")
    for name in (*symmetric, "prob_diff_max"):
        assert other[name] == pytest.approx(one[name]), name


@given(batches(), st.floats(-5.0, 0.0))
def test_a_constant_on_both_sides_scales_perplexities_and_leaves_ratios(batch, constant):
    behavior, target = batch
    before = metrics(behavior, target)
    after = metrics(
        [[value + constant for value in row] for row in behavior],
        [[value + constant for value in row] for row in target],
    )
    for name in ("behavior_ppl", "target_ppl"):
        assert after[name] == pytest.approx(before[name] * np.exp(-constant)), name
    for name in ("k1_kl", "k2_kl", "k3_kl", "ppl_ratio", "chi2_token", "ess_token", "ess_seq"):
        assert after[name] == pytest.approx(before[name], rel=1e-6, abs=1e-9), name


@given(batches())
def test_mean_k3_less_mean_k1_is_mean_ratio_less_one(batch):
    behavior, target = batch
    found = metrics(behavior, target)
    ratio = np.exp(make_pair(behavior, target).log_ratio)
    gap = ratio.mean() - 1
    assert found["k3_kl"] - found["k1_kl"] == pytest.approx(gap, rel=1e-9, abs=1e-9)


@given(batches())
def test_k2_k3_and_distances_are_never_negative(batch):
    found = metrics(*batch)
    for name in ("k2_kl", "k3_kl", "log_ratio_abs_mean", "prob_diff_mean", "ppl_ratio"):
        assert found[name] >= 0.0, name
    assert found["log_ratio_abs_mean"] <= found["log_ratio_abs_max"] * (1 + 1e-12)
    assert found["prob_diff_mean"] <= found["prob_diff_max"] * (1 + 1e-12)


@given(st.floats(-3.0, 3.0))
def test_k3_is_k2_up_to_third_order_and_above_it_where_the_ratio_is_above_one(log_ratio):
    found = metrics([[-4.0]], [[-4.0 + log_ratio]])
    given_exactly = (-4.0 + log_ratio) + 4.0  # what float64 keeps of it
    difference = found["k3_kl"] - found["k2_kl"]
    bound = np.exp(abs(given_exactly)) * abs(given_exactly) ** 3 / 6
    assert abs(difference) <= bound + 1e-15
    assert difference * given_exactly >= -1e-15


@given(batches())
def test_ess_lies_between_one_over_n_and_one_and_agrees_with_chi_squared(batch):
    behavior, target = batch
    found = metrics(behavior, target)
    pair = make_pair(behavior, target)
    sequences = int((pair.lengths > 0).sum())
    assert 1 / len(pair.log_ratio) * (1 - 1e-9) <= found["ess_token"] <= 1 + 1e-9
    assert 1 / sequences * (1 - 1e-9) <= found["ess_seq"] <= 1 + 1e-9
    mean_ratio = np.exp(pair.log_ratio).mean()
    second_moment = found["ess_token"] * (1 + found["chi2_token"])
    assert second_moment == pytest.approx(mean_ratio**2, rel=1e-6, abs=1e-9)


@given(st.lists(st.tuples(log_probs(), log_probs()), min_size=1, max_size=8))
def test_of_sequences_of_one_token_both_levels_are_the_same(tokens):
    found = metrics([[a] for a, _ in tokens], [[b] for _, b in tokens])
    assert found["chi2_seq"] == pytest.approx(found["chi2_token"])
    assert found["ess_seq"] == pytest.approx(found["ess_token"])


@given(batches(), st.floats(0.1, 3.0))
def test_scaled_log_ratios_scale_k2_by_the_square(batch, scale):
    behavior, target = batch
    scaled = [
        [a + scale * (b - a) for a, b in zip(*rows, strict=True)]
        for rows in zip(behavior, target, strict=True)
    ]
    wanted = scale**2 * metrics(behavior, target)["k2_kl"]
    assert metrics(behavior, scaled)["k2_kl"] == pytest.approx(wanted, rel=1e-6, abs=1e-12)
