"""The same to the last digits that another order of sums leaves."""

from __future__ import annotations

from typing import Any

import pytest

from rcdiag.statistics.suite import SuiteState
from tests.builders import values_of

# Differences of sums that nearly cancel; 1e-12 of the sums is more of them.
CANCELLING = ("kappa", "ratio_mean_z", "ratio_mean_seq_z", "kappa_se", "chi2_", "_std", "k1_kl")


def assert_same_values(found: SuiteState, wanted: SuiteState, rel: float = 1e-12) -> None:
    values = values_of(wanted)
    for name, value in values_of(found).items():
        if values[name] is None:
            assert value is None, name
        else:
            near = pytest.approx(values[name], rel=rel, abs=rel)
            loose = pytest.approx(values[name], rel=100 * rel, abs=100 * rel)
            assert value == (loose if any(part in name for part in CANCELLING) else near), name


def assert_near(found: Any, wanted: Any, where: str) -> None:
    """Equal, numbers to 1e-9: sums in another order differ in their last digits."""
    if isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-9, nan_ok=True), where
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted), where
        for key, value in wanted.items():
            assert_near(found[key], value, f"{where}.{key}")
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted), where
        for index, value in enumerate(wanted):
            assert_near(found[index], value, f"{where}[{index}]")
    elif hasattr(wanted, "__slots__"):
        for name in wanted.__slots__:
            assert_near(getattr(found, name), getattr(wanted, name), f"{where}.{name}")
    else:
        assert found == wanted, where
