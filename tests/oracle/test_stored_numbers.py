"""Stored numbers of trainers equal those of their published code."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest

from tests.oracle.store import ANSWERS, CHECKOUTS
from tests.trainers.answers import FOLDER, read_answers

pytestmark = pytest.mark.oracle


def close(stored: Any, computed: Any, tolerance: float) -> bool:
    """Check equal structure, with numbers up to the rounding of another torch build."""
    if isinstance(stored, dict):
        return stored.keys() == computed.keys() and all(
            close(value, computed[name], tolerance) for name, value in stored.items()
        )
    if isinstance(stored, list):
        pairs = zip(stored, computed, strict=True)
        return all(close(ours, theirs, tolerance) for ours, theirs in pairs)
    if isinstance(stored, float) and isinstance(computed, float):
        nan = math.isnan(stored) and math.isnan(computed)
        return nan or math.isclose(stored, computed, rel_tol=tolerance, abs_tol=tolerance)
    return stored == computed


def each_trainer() -> list[Any]:
    """Yield all trainers; those that need a checkout are skipped without it."""
    needs = {name: [one.needed for one in several] for name, several in CHECKOUTS.items()}
    return [pytest.param(name, marks=needs.get(name, [])) for name in ANSWERS]


@pytest.mark.parametrize("name", each_trainer())
def test_stored_numbers_are_those_of_the_trainer(name):
    stored, computed = read_answers(FOLDER / f"{name}.json"), ANSWERS[name]()
    assert stored.source == computed.source
    pairs = [
        *zip(stored.corrections, computed.corrections, strict=True),
        *zip(stored.losses, computed.losses, strict=True),
    ]
    for ours, theirs in pairs:
        narrow = getattr(ours, "arithmetic", "float64") == "float32"
        assert close(asdict(ours), asdict(theirs), 1e-5 if narrow else 1e-10), ours
