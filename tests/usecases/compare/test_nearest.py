"""Which of several scorers is nearest to the sampling distribution."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.usecases.compare.ladder import behind_the_best, is_nearest
from tests.builders import flat
from tests.usecases.compare.tables import base_log_probs, moments, ragged, robust

VOCABULARY = 64
ROWS, LENGTH = 300, 60


def scorers(noises: dict[str, float], seed: int = 0) -> dict[str, list[list[float]]]:
    """Draw tokens from a distribution, and score them by copies with noisy logits."""
    random = np.random.default_rng(seed)
    logits = 1.5 * random.normal(size=(ROWS * LENGTH, VOCABULARY))

    def laws(values):
        return values - np.log(np.exp(values).sum(axis=1, keepdims=True))

    law = laws(logits)
    gumbel = random.gumbel(size=law.shape)
    drawn = np.argmax(law + gumbel, axis=1)
    result = {}
    for name, noise in noises.items():
        scored = laws(logits + noise * random.normal(size=law.shape))
        result[name] = ragged([LENGTH] * ROWS, scored[np.arange(len(drawn)), drawn])
    return result


def nearest(policies) -> set[str]:
    result = behind_the_best(moments(policies))
    return {name for name, behind in result.items() if is_nearest(behind)}


@pytest.mark.parametrize("order", [["low", "mid", "high"], ["high", "mid", "low"]])
def test_the_scorer_with_the_least_noise_is_nearest_whatever_the_order(order):
    noises = {"low": 0.05, "mid": 0.3, "high": 0.6}
    assert nearest(scorers({name: noises[name] for name in order})) == {"low"}


def test_two_scorers_equally_good_are_both_nearest():
    assert nearest(scorers({"worse": 0.6, "one": 0.2, "other": 0.2})) == {"one", "other"}


def test_equal_policies_are_all_nearest():
    base = base_log_probs(5)
    assert nearest({"a": base, "b": base}) == {"a", "b"}


def test_behind_is_the_difference_of_divergences_from_the_sampler():
    """A table in which every token has its exact expected frequency."""
    s = np.array([0.5, 0.25, 0.125, 0.125])
    laws = {
        "q": np.array([0.2, 0.3, 0.3, 0.2]),
        "p": np.array([0.45, 0.3, 0.15, 0.1]),
        "r": np.array([0.7, 0.1, 0.1, 0.1]),
    }
    tokens = [0, 0, 0, 0, 1, 1, 2, 3]
    policies = {name: [np.log(law[tokens]).tolist()] * 3 for name, law in laws.items()}
    result = behind_the_best(moments(policies))
    kl = {name: float(np.sum(s * np.log(s / law))) for name, law in laws.items()}
    assert min(kl, key=kl.__getitem__) == "p"
    for name, behind in result.items():
        assert behind.value == pytest.approx(kl[name] - kl["p"], abs=1e-15)


def test_behind_has_the_paired_interval_by_cluster():
    policies = scorers({"a": 0.4, "b": 0.1})
    result = behind_the_best(moments(policies))["a"]
    apart = flat(policies["b"]) - flat(policies["a"])
    expected = robust(apart, np.ones_like(apart), np.repeat(np.arange(ROWS), LENGTH))
    assert (result.value, result.low, result.high) == pytest.approx(expected, rel=1e-9)


def test_the_best_is_behind_itself_by_zero():
    result = behind_the_best(moments(scorers({"a": 0.4, "b": 0.1})))["b"]
    assert (result.value, result.low, result.high) == (0.0, 0.0, 0.0)


def test_with_one_cluster_only_the_best_is_nearest():
    base = base_log_probs(1)
    worse = [[value - 1e-6 for value in base[0]]]
    assert nearest({"worse": worse, "best": base}) == {"best"}


def test_clusters_of_repeated_rows_do_not_make_a_difference_certain():
    """Ten copies of three rows are three clusters, with the information of three rows."""
    random = np.random.default_rng(3)
    base = ragged([20] * 3, -3.0 + random.normal(size=60))
    other = ragged([20] * 3, flat(base) + 0.5 * random.normal(size=60))
    few = behind_the_best(moments({"a": base, "b": other}))
    copies = moments({"a": base * 10, "b": other * 10}, group=[0, 1, 2] * 10)
    many = behind_the_best(copies)
    for name in ("a", "b"):
        assert many[name].low == pytest.approx(few[name].low, rel=1e-9)
        assert many[name].high == pytest.approx(few[name].high, rel=1e-9)
