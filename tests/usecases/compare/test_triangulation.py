"""Recorded, rescored and trainer log-probs: which one disagrees with the others."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.diagnosis.triangulation import triangulate
from rcdiag.results import NoiseFloor, Triangulation
from tests.builders import Lists, flat
from tests.usecases.compare.tables import base_log_probs, distances, shifted

BASE = base_log_probs(60)


def built(
    sampler: float, engine: float, trainer: float, *, floor: float | None = None
) -> Triangulation:
    """Build three policies with independent noise around one distribution, and a noise floor."""
    policies: dict[str, Lists] = {
        "recorded": shifted(BASE, sampler, 1),
        "rescored": shifted(BASE, engine, 2),
        "scored": shifted(BASE, trainer, 3),
    }
    result: NoiseFloor | None = None
    if floor is not None:
        policies["again"] = shifted(policies["rescored"], floor, 4)
        result = NoiseFloor(
            policy="rescored",
            repeat="again",
            k2=distances(policies)["rescored", "again"],
            log_ratio_abs_max=None,
        )
    return triangulate(distances(policies), "recorded", "rescored", "scored", result)


CASES = {
    "engine-against-trainer": (0.01, 0.01, 0.3),
    "generation-against-rescoring": (0.3, 0.01, 0.01),
    "rescoring-stands-apart": (0.01, 0.3, 0.01),
    "three-differ": (0.3, 0.3, 0.3),
    "three-agree": (0.02, 0.02, 0.02),
}
ODD = {
    "engine-against-trainer": "scored",
    "generation-against-rescoring": "recorded",
    "rescoring-stands-apart": "rescored",
    "three-differ": None,
    "three-agree": None,
}


@pytest.mark.parametrize("verdict", CASES)
def test_each_verdict_without_a_floor(verdict):
    result = built(*CASES[verdict])
    assert (result.agreement, result.odd_one_out) == (verdict, ODD[verdict])


@pytest.mark.parametrize("verdict", CASES)
def test_a_floor_far_below_changes_no_verdict(verdict):
    result = built(*CASES[verdict], floor=1e-4)
    assert (result.agreement, result.odd_one_out) == (verdict, ODD[verdict])


def test_differences_within_the_floor_are_agreement():
    assert built(0.3, 0.3, 0.3).agreement == "three-differ"
    assert built(0.3, 0.3, 0.3, floor=0.6).agreement == "three-agree"


@pytest.mark.parametrize("verdict", ["engine-against-trainer", "generation-against-rescoring"])
def test_no_policy_is_blamed_for_less_than_the_floor(verdict):
    """A difference at the floor is noise."""
    result = built(*CASES[verdict], floor=0.6)
    assert (result.agreement, result.odd_one_out) == ("three-agree", None)


def test_two_equal_policies_agree_against_a_third():
    policies = {"a": BASE, "b": BASE, "c": shifted(BASE, 0.2, 1)}
    result = triangulate(distances(policies), "a", "b", "c", None)
    assert result.agreement == "engine-against-trainer"


def test_three_equal_policies_agree():
    result = triangulate(distances({"a": BASE, "b": BASE, "c": BASE}), "a", "b", "c", None)
    assert (result.agreement, result.odd_one_out) == ("three-agree", None)


def test_the_distances_are_those_of_the_pairs_named():
    result = built(0.01, 0.1, 0.3)
    policies = {
        "recorded": shifted(BASE, 0.01, 1),
        "rescored": shifted(BASE, 0.1, 2),
        "scored": shifted(BASE, 0.3, 3),
    }
    assert set(result.k2) == {"recorded~rescored", "recorded~scored", "rescored~scored"}
    for pair, value in result.k2.items():
        one, other = (flat(policies[name]) for name in pair.split("~"))
        assert value.value == pytest.approx(np.mean((other - one) ** 2) / 2, rel=1e-9)
    assert (result.sampler_policy, result.engine_policy, result.trainer_policy) == (
        "recorded",
        "rescored",
        "scored",
    )


def test_a_constant_offset_of_one_policy_is_found_like_noise():
    off = [[value - 0.2 for value in row] for row in BASE]
    result = triangulate(
        distances({"a": off, "b": BASE, "c": shifted(BASE, 0.01, 1)}), "a", "b", "c", None
    )
    assert (result.agreement, result.odd_one_out) == ("generation-against-rescoring", "a")


def test_no_policy_is_blamed_if_few_clusters_cannot_decide():
    """One row makes the whole difference, so its interval reaches down to the others."""
    spike = [list(row) for row in BASE[:4]]
    spike[0] = [value - 2.0 for value in spike[0]]
    result = triangulate(
        distances({"a": BASE[:4], "b": shifted(BASE[:4], 0.1, 2), "c": spike}), "a", "b", "c", None
    )
    assert result.odd_one_out is None
