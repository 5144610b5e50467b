"""exp and log in the arithmetic of trainers: torch's, to the last digit nearly everywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rcdiag.corrections.exponentials import exp, log

DRAW = np.random.default_rng(0)
LOG_PROBS = (-(10.0 ** DRAW.uniform(-6, 1.2, 100_000))).astype(np.float32)


@pytest.mark.parametrize(
    ("ours", "theirs", "values", "differing"),
    [(exp, torch.exp, LOG_PROBS, 0.02), (log, torch.log, np.exp(LOG_PROBS), 0.15)],
)
def test_float32_is_rounded_as_torch_rounds(ours, theirs, values, differing):
    result, expected = ours(values), theirs(torch.from_numpy(values)).numpy()
    assert result.dtype == np.float32
    np.testing.assert_array_max_ulp(result, expected, maxulp=1)
    assert (result != expected).mean() < differing


def test_numbers_beyond_float32_are_infinite_and_float64_is_numpys():
    assert exp(np.array([100.0, -200.0], np.float32)).tolist() == [np.inf, 0.0]
    assert np.isnan(exp(np.array([np.nan], np.float32))[0])
    values = LOG_PROBS.astype(np.float64)
    assert (exp(values) == np.exp(values)).all()
