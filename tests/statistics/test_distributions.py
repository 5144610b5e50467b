"""Own formulas of the normal distribution and of Student's t, compared with scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr, ndtri, stdtrit

from rcdiag.statistics.distributions import normal_cdf, normal_quantile, student_quantile


@pytest.mark.parametrize("value", [-38.0, -8.5, -4.0, -1.96, -1e-9, 0.0, 0.3, 2.0, 6.0])
def test_the_normal_distribution_is_that_of_scipy(value):
    assert normal_cdf(value) == pytest.approx(ndtr(value), rel=1e-13)


@pytest.mark.parametrize("probability", [0.0, 1e-12, 0.025, 0.4, 0.5, 0.9, 0.99997, 1.0])
def test_normal_quantiles_are_those_of_scipy(probability):
    assert normal_quantile(probability) == pytest.approx(ndtri(probability), rel=1e-14, abs=1e-16)


@pytest.mark.parametrize("tail", [0.1, 0.025, 0.0228, 0.001, 3.17e-5, 1e-7])
def test_quantiles_of_students_t_are_those_of_scipy(tail):
    freedom = np.concatenate([np.linspace(1.0, 9.0, 801), np.geomspace(9.0, 1e8, 400)])
    quantiles = student_quantile(freedom, tail)
    assert np.abs(quantiles / -stdtrit(freedom, tail) - 1.0).max() < 2e-13


def test_quantiles_have_the_shape_of_the_degrees_of_freedom():
    assert student_quantile(4, 0.025).shape == ()
    assert student_quantile([[4.0, 5.0], [6.0, 7.5]], 0.025).shape == (2, 2)
    assert student_quantile(np.inf, 0.025) == pytest.approx(1.959963984540054, rel=1e-14)


def test_there_is_no_quantile_below_one_degree_of_freedom():
    assert np.isnan(student_quantile([0.0, 0.99, np.nan], 0.025)).all()
