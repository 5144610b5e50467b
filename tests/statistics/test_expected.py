"""What honest rounding makes of sequence ratios: closed forms, and drawn ones."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rcdiag.diagnosis.guides import level
from rcdiag.statistics.metrics.expected import (
    ess_guide,
    expected_ess_seq,
    expected_k_hat_seq,
    honest_kl,
    k_hat_guide,
)
from rcdiag.statistics.metrics.overlap import ESS_SEQ_GUIDE
from rcdiag.statistics.metrics.tail import K_HAT_GUIDE
from rcdiag.statistics.pareto import UpperTail, k_hat


def suite(kl: float, lengths: list[int] | np.ndarray):
    point = SimpleNamespace(per_token=lambda name: np.array([kl]))
    table = SimpleNamespace(lengths=np.asarray(lengths))
    return SimpleNamespace(point=point, state=SimpleNamespace(table=table))


def test_the_ess_of_equal_lengths_is_its_closed_form():
    assert expected_ess_seq(suite(5e-4, [100] * 64)) == pytest.approx(np.exp(-0.1))


def test_long_sequences_rule_the_second_moment():
    lengths = [10, 1000]
    expected = 2.0 / (np.exp(0.01) + np.exp(1.0))
    assert expected_ess_seq(suite(5e-4, lengths)) == pytest.approx(expected)


def test_a_faults_kl_is_not_expected():
    assert honest_kl(suite(0.3, [10])) == 0.01
    assert honest_kl(suite(2e-4, [10])) == 2e-4


@pytest.mark.parametrize("length", [200, 1000, 4000])
def test_k_hat_of_drawn_rounding_is_near_what_is_expected(length):
    kl, rng = 2e-4, np.random.default_rng(length)
    drawn = rng.normal(-kl * length, np.sqrt(2.0 * kl * length), (40, 512))
    fitted = [k_hat(UpperTail.of(row))[0] for row in drawn]
    assert np.mean(fitted) == pytest.approx(expected_k_hat_seq(suite(kl, [length] * 512)), abs=0.1)


@pytest.mark.parametrize("length", [60, 1000, 4000, 30_000])
def test_length_alone_is_never_an_error(length):
    """An honest run at the warning bound of k3 is at no length in error by these two."""
    kl, rng = 1e-3, np.random.default_rng(length)
    data = suite(kl, [length] * 512)
    for row in rng.normal(-kl * length, np.sqrt(2.0 * kl * length), (20, 512)):
        weights = np.exp(row - row.max())
        ess = float(weights.sum() ** 2 / (512 * (weights**2).sum()))
        assert level(ess_guide(ESS_SEQ_GUIDE, data), ess) != "error"
        assert level(k_hat_guide(K_HAT_GUIDE, data), k_hat(UpperTail.of(row))[0]) != "error"


def test_short_sequences_keep_the_guides_bounds():
    data = suite(1e-4, [100] * 512)
    assert ess_guide(ESS_SEQ_GUIDE, data) == ESS_SEQ_GUIDE
    assert k_hat_guide(K_HAT_GUIDE, data) == K_HAT_GUIDE
