"""exp and log in the arithmetic of trainers: torch's float32, rounded to the nearest."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rcdiag.corrections.arithmetic import exp, log

DRAW = np.random.default_rng(0)
LOG_PROBS = (-(10.0 ** DRAW.uniform(-6, 1.2, 100_000))).astype(np.float32)


@pytest.mark.parametrize(
    ("ours", "theirs", "true", "values"),
    [(exp, torch.exp, np.exp, LOG_PROBS), (log, torch.log, np.log, np.exp(LOG_PROBS))],
)
def test_float32_equals_torch_or_the_closer_neighbour(ours, theirs, true, values):
    """torch does not always round to nearest; how often depends on the processor."""
    result, expected = ours(values), theirs(torch.from_numpy(values)).numpy()
    assert result.dtype == np.float32
    np.testing.assert_array_max_ulp(result, expected, maxulp=1)
    exact = true(values.astype(np.longdouble))
    other = result != expected
    assert (np.abs(result - exact)[other] <= np.abs(expected - exact)[other]).all()


def test_numbers_beyond_float32_are_infinite_and_float64_is_numpys():
    assert exp(np.array([100.0, -200.0], np.float32)).tolist() == [np.inf, 0.0]
    assert np.isnan(exp(np.array([np.nan], np.float32))[0])
    values = LOG_PROBS.astype(np.float64)
    assert (exp(values) == np.exp(values)).all()
