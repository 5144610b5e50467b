"""Every row of every family equals the single-threshold code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.corrections.correction import Correction
from rcdiag.results import CorrectionResult
from rcdiag.results.sweep import SweepRow
from rcdiag.usecases.sweep.estimator_families import FAMILIES, Bounds
from tests.corrections.batches import batches
from tests.corrections.builders import Padded, padded
from tests.examples import dear
from tests.usecases.sweep.builders import finite, pair_from, rows_of_family, single

TRAINER_ESS = "rollout_corr/rollout_is_eff_sample_size"
EVERY = pytest.mark.parametrize("family", FAMILIES)


def close(expected: float | None) -> Any:
    return None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-12)


def lost(result: CorrectionResult, correction: Correction) -> float | None:
    level = "token" if correction.discards_tokens else "seq"
    return result.actual[f"lost_target_mass_{level}"]


def same(row: SweepRow, family: str, batch: Padded) -> None:
    correction = FAMILIES[family].correction(row.bounds)
    expected = single(correction, pair_from(batch))
    actual = expected.actual
    assert row.kept_tokens == expected.kept_tokens
    assert row.kept_sequences == expected.kept_sequences
    assert row.ess_token_applied == close(actual["ess_token_applied"])
    assert row.ess_seq_applied.value == close(actual["ess_seq_applied"])
    assert row.lost_mass.value == close(lost(expected, correction))
    assert row.truncation_loss.value == close(actual["truncation_loss"])
    assert row.bias_bound == close(actual["bias_bound"])
    assert row.keep_length_correlation == correlation(actual["keep_length_correlation"])
    assert row.ess_trainer == close(finite(expected.metrics.get(TRAINER_ESS)))
    if family.endswith("_tis") and not correction.rejections:
        assert row.mean_weight.value == close(finite(mean_weight(expected, batch)))


def mean_weight(result: CorrectionResult, batch: Padded) -> float:
    assert result.weight_sum is not None
    return result.weight_sum / int(batch.mask.sum())


def correlation(expected: float | None) -> Any:
    """Skip correlations of shares that differ only by rounding."""
    return None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-7)


def points(family: str, batch: Padded) -> list[float]:
    """Draw bounds: the exact ratios and k values of the batch, and others."""
    logs = batch.log_ratio[batch.mask]
    sums = np.where(batch.mask, batch.log_ratio, 0.0).sum(axis=1)
    if family in ("veto",):
        return [1e-8, 1e-4, 0.5, 1.0, *np.exp(np.clip(logs, -30.0, 3.0)).tolist()]
    if "k2" in family or family.startswith(("token_k", "seq_sum_k", "seq_max_k", "seq_mean_k")):
        squares = 0.5 * np.clip(logs, -20.0, 20.0) ** 2
        k3 = np.expm1(np.clip(logs, -20.0, 20.0)) - np.clip(logs, -20.0, 20.0)
        return [1e-4, 0.01, 1.0, 50.0, *squares.tolist(), *k3.tolist()]
    ratios = np.exp(np.clip(np.concatenate([logs, sums]), -20.0, 20.0))
    return [1e-3, 0.5, 0.999, 1.0, 1.001, 2.0, 5.0, *ratios.tolist()]


@st.composite
def drawn_settings(draw: st.DrawFn, family: str, batch: Padded) -> list[Bounds]:
    names = FAMILIES[family].grid(60)[0]
    # A bound beyond the trainer's clamp has no effect there.
    values = st.sampled_from([value for value in points(family, batch) if 0.0 < value < 1e8])
    result = []
    for _ in range(draw(st.integers(1, 4))):
        bounds = {name: draw(values) for name in names}
        for low, high in (("lower", "upper"), ("rs_lower", "rs_upper")):
            if low in bounds and high in bounds:
                bounds[low], bounds[high] = sorted((bounds[low], bounds[high]))
        result.append(bounds)
    return result


@EVERY
@given(data=st.data(), batch=batches())
@dear(40)
def test_drawn_tables_and_bounds(family, data, batch):
    grid = data.draw(drawn_settings(family, batch))
    for row in rows_of_family(family, grid, batch):
        same(row, family, batch)


@EVERY
def test_the_declared_grid_on_a_larger_table(family):
    random = np.random.default_rng(3)
    lists = [random.normal(-0.02, 0.3, size).tolist() for size in random.integers(1, 40, 60)]
    batch = padded(lists, group=np.arange(60) // 4, reward=random.random(60))
    grid = FAMILIES[family].grid(20)
    for row in rows_of_family(family, grid, batch)[:: max(1, len(grid) // 25)]:
        same(row, family, batch)


@EVERY
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_is_treated_as_by_the_single_threshold_code(family, value):
    batch = padded([[0.1, value, -0.2], [0.3], [-0.7, 0.6]])
    for row in rows_of_family(family, FAMILIES[family].grid(20)[::5], batch):
        same(row, family, batch)


def test_bounds_are_included():
    batch = padded([[np.log(2.0)], [np.log(0.5)], [0.0]])
    two = float(np.exp(np.log(2.0)))
    (row,) = rows_of_family("seq_rs", [{"lower": 0.5, "upper": two}], batch)
    assert row.kept_sequences == 3
    below = float(np.nextafter(two, 0.0))
    (row,) = rows_of_family("token_rs", [{"lower": 0.5, "upper": below}], batch)
    assert row.kept_tokens == 2


def test_everything_rejected():
    batch = padded([[1.0, 2.0], [3.0]])
    (row,) = rows_of_family("token_mis", [{"lower": 0.9, "upper": 1.1}], batch)
    assert (row.kept_tokens, row.kept_sequences, row.kept_groups) == (0, 0, 0)
    assert row.ess_token_applied is None
    assert row.ess_seq_applied.value is None
    assert row.lost_mass.value == 1.0
    assert row.reward_shift.value is None
