"""Functions that many causes and experiments share, with hand-computed values."""

from types import SimpleNamespace

import numpy as np
import pytest

from rcdiag.diagnosis.case import rms, spread_over, z_of_sums
from rcdiag.diagnosis.causes.cause import Suspicion, fact
from rcdiag.diagnosis.causes.columns import by_column
from rcdiag.diagnosis.experiments.hypothesis_tester import HypothesisTester, smallest
from rcdiag.diagnosis.experiments.rescored_sample import ranges


def test_indices_are_spread_from_the_first_to_the_last():
    assert spread_over(9, 3).tolist() == [0, 4, 8]
    assert spread_over(4, 9).tolist() == [0, 1, 2, 3]
    assert spread_over(0, 3).tolist() == []


def test_ranges_follow_each_other():
    assert ranges(np.array([5, 0]), np.array([2, 3])).tolist() == [5, 6, 0, 1, 2]
    assert ranges(np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []


def test_rms_and_z_by_hand():
    assert rms(np.array([3.0, -4.0])) == pytest.approx(12.5**0.5)
    assert rms(np.zeros(0)) == 0.0
    assert z_of_sums(np.array([1.0, 2.0, -2.0])) == pytest.approx(1 / 3)
    assert z_of_sums(np.zeros(3)) == 0.0


def test_evidence_holds_plain_numbers():
    made = fact("k3", "small", value=np.float64(0.5), tokens=np.int64(3), ids=[1])
    assert made == {"name": "k3", "reads": "small", "value": 0.5, "tokens": 3, "ids": [1]}
    assert {type(made["value"]), type(made["tokens"])} == {float, int}


@pytest.mark.parametrize(("policy", "side"), [("rollout", "recorder"), ("old", "trainer")])
def test_a_cause_of_one_column_is_on_the_side_of_the_column(policy, side):
    columns = {name: SimpleNamespace(values=np.zeros(20)) for name in ("rollout", "old")}
    features = SimpleNamespace(columns=columns, case=SimpleNamespace(sampler="rollout"))
    asked = []

    @by_column
    def weigh(features, name, column):
        asked.append(name)
        return Suspicion(confidence=0.9, message=name) if name == policy else None

    found = weigh(features)
    assert (found.message, found.side) == (policy, side)
    assert asked == ["rollout", "old"][: 1 + (policy == "old")]


def _test(nats: float) -> SimpleNamespace:
    return SimpleNamespace(residual=SimpleNamespace(nats=nats))


def test_the_smallest_loss_is_the_best_and_the_first_of_equal_ones():
    first, second, worse = _test(1.0), _test(1.0), _test(2.0)
    assert smallest([None, worse, first, second]) is first
    assert smallest([None]) is None


def test_the_search_ends_when_a_test_is_sufficient():
    ran = []

    def tests():
        for nats in (3.0, 1.0, 2.0, 0.0):
            ran.append(nats)
            yield _test(nats)

    tester = SimpleNamespace(out_of_time=False)
    best = HypothesisTester.best_of(tester, tests(), lambda test: test.residual.nats <= 1.0)
    assert (best.residual.nats, ran) == (1.0, [3.0, 1.0])
    ran.clear()
    assert HypothesisTester.best_of(tester, tests()).residual.nats == 0.0
    ran.clear()
    hurried = HypothesisTester.best_of(SimpleNamespace(out_of_time=True), tests())
    assert (hurried.residual.nats, ran) == (3.0, [3.0])
