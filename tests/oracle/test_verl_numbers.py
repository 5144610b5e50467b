"""Every number of every generation, against verl's own code in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcdiag.trainers import find_trainer
from rcdiag.trainers.plan import plan_corrections
from tests.corrections.batches import batches, seeded
from tests.corrections.builders import Padded, padded, plan_of, presets_of
from tests.corrections.configs import configs_of
from tests.oracle.comparisons import differences
from tests.oracle.verl import PACKAGES

pytestmark = pytest.mark.oracle
every_generation = pytest.mark.parametrize("trainer", PACKAGES)
CUTS = st.integers(1, 3)


@every_generation
@given(batch=batches(), cuts=CUTS)
@settings(max_examples=40)
def test_presets(trainer, batch, cuts):
    assert differences(presets_of(trainer), batch, cuts) == []


@every_generation
@given(data=st.data(), batch=batches(), cuts=CUTS)
@settings(max_examples=400)
def test_drawn_settings(trainer, data, batch, cuts):
    plan = plan_of(trainer, data.draw(configs_of(trainer)))
    assert differences(plan, batch, cuts) == []


@every_generation
@given(data=st.data())
@settings(max_examples=3)
def test_many_settings_on_larger_batches(trainer, data):
    drawn = data.draw(st.lists(configs_of(trainer), min_size=6, max_size=6))
    plan = plan_corrections(
        find_trainer(trainer), {str(index): config for index, config in enumerate(drawn)}
    )
    batch = seeded(
        data.draw(st.integers(0, 100)),
        rows=40,
        width=60,
        sd=data.draw(st.sampled_from((0.02, 0.5))),
    )
    assert differences(plan, batch, 5) == []


@every_generation
@given(data=st.data())
@settings(max_examples=40)
def test_unmasked_nan_log_probs(trainer, data):
    """-inf is a token that the new policy never samples; NaN is an engine error."""
    rows = data.draw(
        st.lists(
            st.lists(st.sampled_from((0.0, 0.5, -30.0, -np.inf, np.nan)), min_size=1, max_size=4),
            min_size=1,
            max_size=3,
        )
    )
    plan = plan_of(trainer, data.draw(configs_of(trainer)))
    assert differences(plan, _sure_rollout(rows), 1) == []


def _sure_rollout(rows: list[list[float]]) -> Padded:
    """Set rollout log-probs to 0, so that the log-ratio is the target's log-prob."""
    filled = padded([[0.0] * len(row) for row in rows])
    old = filled.old.copy()
    old[filled.mask] = [value for row in rows for value in row]
    return Padded(old, np.zeros_like(old), filled.mask)


@pytest.mark.parametrize("trainer", ["verl-0.7.1", "verl-0.8.0", "verl-0.9"])
@pytest.mark.parametrize("bounds", ["0.6_1.6", "0.7_1.3", "0.999_1.001", "0.1_10", "1.25"])
@pytest.mark.parametrize("option", ["token_k1", "seq_sum_k1"])
def test_values_on_a_k1_bound_to_the_last_bit(trainer, bounds, option):
    ends = np.log([float(item) for item in bounds.split("_")])
    around = np.array([[end, np.nextafter(end, 9), np.nextafter(end, -9)] for end in ends])
    batch = padded([[value] for value in (*around.ravel(), *-around.ravel())])
    config = {"rollout_is": None, "rollout_rs": option, "rollout_rs_threshold": bounds}
    assert differences(plan_of(trainer, config), batch, 2) == []
