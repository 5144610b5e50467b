"""Rows with a second level of mismatch are found, however many rows agree to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.diagnosis.case import Case, RowFacts
from rcdiag.diagnosis.features import Features

LENGTH = 50


def differing(rms: list[float]) -> Case:
    """Make a case whose rows have the given rms log-ratios, in nats."""
    rng = np.random.default_rng(0)
    rows, tokens = len(rms), len(rms) * LENGTH
    old = -rng.exponential(2.0, tokens) - 1.0
    noise = rng.choice([-1.0, 1.0], tokens) * np.repeat(rms, LENGTH)
    return Case(
        sampler="rollout",
        trainer="old",
        row=np.arange(rows),
        lengths=np.full(rows, LENGTH),
        token_id=rng.integers(0, 500, tokens).astype(np.int32),
        mask=np.ones(tokens, np.bool_),
        log_probs={"rollout": old + noise, "old": old},
        prompt_ids=None,
        facts=RowFacts(),
    )


@pytest.mark.parametrize("equal", [0.0, 1e-7])
def test_bitwise_equal_rows_are_not_a_second_kind(equal):
    rms = [equal] * 7 + [0.003] * 40 + [0.012] * 30 + [0.08] * 16
    part = Features(differing(rms)).location.outlier_rows
    assert part is not None
    assert np.flatnonzero(part.rows).tolist() == list(range(77, 93))
    assert part.rms_of_others < 0.01
    assert part.rms == pytest.approx(0.08)


def test_rows_that_differ_by_less_than_rounding_are_of_one_kind():
    assert Features(differing([0.0] * 20 + [0.012] * 60)).location.outlier_rows is None
