"""Profiles against loops over tokens: which bin a token is in, and what the bin says."""

from __future__ import annotations

from collections import defaultdict
from math import exp, inf, nan, sqrt

import numpy as np
import pytest

from rcdiag.results import Profile
from rcdiag.statistics.intervals import ratio_interval
from rcdiag.statistics.profiles import PROFILES, Profiles, finished
from tests.builders import make_pair, summed
from tests.statistics.profile_loops import LABELS, columns_of, interval_of, label, tokens_of
from tests.statistics.strategies import seeded_batch


def profiles_of(columns: dict[str, list]) -> dict[str, Profile]:
    return finished(Profiles.of(make_pair(**{**columns, "entropy": {"old": columns["entropy"]}})))


def test_every_axis_has_a_brute_force_reference():
    assert set(PROFILES) == {*LABELS, "target_probability", "mean_probability"}
    for name, labels in LABELS.items():
        assert len(labels) == len(PROFILES[name].edges) + 1, name


@pytest.mark.parametrize("axis", PROFILES)
def test_every_bin_equals_the_brute_force(axis):
    columns = columns_of(60)
    bins: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for token in tokens_of(columns):
        name = label(axis, getattr(token, axis))
        if name is not None:
            bins[name][token.cluster].append(token.log_ratio)
    result = {item.label: item for item in profiles_of(columns)[axis].bins}
    assert set(result) == set(bins)
    assert len(result) >= 3
    everything = sum(d * d for item in bins.values() for own in item.values() for d in own)
    for name, values in bins.items():
        deltas = np.concatenate(list(values.values()))
        assert result[name].tokens == len(deltas), name
        assert result[name].log_ratio_mean.value == pytest.approx(deltas.mean()), name
        assert result[name].log_ratio_rms.value == pytest.approx(sqrt(np.mean(deltas**2))), name
        assert result[name].k3_kl.value == pytest.approx(np.mean(np.exp(deltas) - 1 - deltas)), name
        share = np.sum(deltas**2) / everything
        assert result[name].share_of_squares == pytest.approx(share), name
        mean = result[name].log_ratio_mean
        expected = interval_of(values)
        assert (mean.low, mean.high) == pytest.approx(expected), name
        if None in expected:
            continue
        squares = interval_of({key: [d * d for d in own] for key, own in values.items()})
        rms = result[name].log_ratio_rms
        assert (rms.low, rms.high) == pytest.approx([sqrt(max(end, 0)) for end in squares]), name
        k3 = interval_of({key: [exp(d) - 1 - d for d in own] for key, own in values.items()})
        ends = result[name].k3_kl.low, result[name].k3_kl.high
        assert ends == pytest.approx((max(k3[0], 0.0), k3[1])), name


def test_bins_come_in_the_order_of_their_edges():
    for name, profile in profiles_of(columns_of(60)).items():
        order = LABELS.get(name) or LABELS["behavior_probability"]
        labels = [item.label for item in profile.bins]
        assert labels == [item for item in order if item in labels], name


def test_a_table_without_a_column_has_no_profile_of_it():
    behavior, target = seeded_batch(0)
    names = set(finished(Profiles.of(make_pair(behavior, target))))
    assert names == set(PROFILES) - {"entropy", "turn", "reward"}


def test_turns_are_runs_of_unmasked_tokens_of_one_row():
    rows = [[-1.0] * 6, [-1.0] * 2, [-1.0] * 3]
    masks = [[1, 1, 0, 1, 0, 1], [0, 1], [1, 1, 1]]
    turns = make_pair(rows, rows, mask=masks).tokens.turn
    assert turns is not None
    assert turns.tolist() == [1, 1, 2, 3, 1, 1, 1, 1]


def test_entropy_is_that_of_the_last_listed_policy():
    pair = make_pair([[-1.0]], [[-1.5]], entropy={"rollout": [[0.02]], "old": [[3.0]]})
    (only,) = finished(Profiles.of(pair))["entropy"].bins
    assert only.label == "2-4"


def test_a_nan_affects_only_its_bin():
    bins = finished(Profiles.of(make_pair([[-1.0, -1.0]], [[nan, -1.5]])))["position"].bins
    assert np.isnan(bins[0].log_ratio_mean.value)
    assert bins[1].log_ratio_mean.value == pytest.approx(-0.5)


def test_a_token_impossible_under_the_target_is_in_the_lowest_bin_of_its_probability():
    result = finished(Profiles.of(make_pair([[-1.0, -1.0]], [[-inf, -1.5]])))
    for name in ("target_probability", "mean_probability"):
        first = result[name].bins[0]
        assert (first.label, first.tokens) == ("< 0.0001", 1), name


def test_profiles_of_shards_add_up_even_where_one_lacks_an_axis():
    columns = columns_of(30)
    del columns["entropy"]
    with_reward = Profiles.of(make_pair(**columns))
    without = Profiles.of(make_pair(*seeded_batch(1, 10), first_row=30))
    both = finished(summed([without, with_reward]))
    reward = finished(with_reward)["reward"]
    assert [item.tokens for item in both["reward"].bins] == [item.tokens for item in reward.bins]
    tokens = sum(item.tokens for item in both["position"].bins)
    alone = (finished(with_reward), finished(without))
    assert tokens == sum(item.tokens for one in alone for item in one["position"].bins)


def test_one_cluster_alone_in_a_bin_has_no_interval():
    low, high = ratio_interval(
        np.array([[1.0, 2.0], [0.0, 3.0]]), np.array([[2.0, 3.0], [0.0, 4.0]])
    )
    assert np.isnan([low[0], high[0]]).all()
    assert low[1] < 5 / 7 < high[1]
