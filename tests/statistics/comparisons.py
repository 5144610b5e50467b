"""Equality up to the rounding of sums in another order."""

from __future__ import annotations

from typing import Any

import pytest

from rcdiag.statistics.suite import SuiteState
from tests.builders import values_of

# Differences of nearly equal sums have a larger relative error than 1e-12.
CANCELLING = ("kappa", "ratio_mean_z", "ratio_mean_seq_z", "kappa_se", "chi2_", "_std", "k1_kl")


def assert_same_values(result: SuiteState, expected: SuiteState, rel: float = 1e-12) -> None:
    values = values_of(expected)
    for name, value in values_of(result).items():
        if values[name] is None:
            assert value is None, name
        else:
            near = pytest.approx(values[name], rel=rel, abs=rel)
            loose = pytest.approx(values[name], rel=100 * rel, abs=100 * rel)
            assert value == (loose if any(part in name for part in CANCELLING) else near), name


def assert_near(result: Any, expected: Any, where: str) -> None:
    """Check equality, with numbers to 1e-9: sums in another order differ in the last digits."""
    if isinstance(expected, float):
        assert result == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True), where
    elif isinstance(expected, dict):
        assert list(result) == list(expected), where
        for key, value in expected.items():
            assert_near(result[key], value, f"{where}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(result) == len(expected), where
        for index, value in enumerate(expected):
            assert_near(result[index], value, f"{where}[{index}]")
    elif hasattr(expected, "__slots__"):
        for name in expected.__slots__:
            assert_near(getattr(result, name), getattr(expected, name), f"{where}.{name}")
    else:
        assert result == expected, where
