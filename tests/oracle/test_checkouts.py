"""Stored numbers in `tests/trainers/` equal those of the trainers' own code."""

from __future__ import annotations

import json

import pytest

from tests.oracle.store_checkouts import ORACLES, Oracle
from tests.trainers.differences import differing

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize(
    "oracle", [pytest.param(each, marks=each.checkout.needed, id=each.folder) for each in ORACLES]
)
def test_checkout_numbers(oracle: Oracle) -> None:
    stored, asked = json.loads(oracle.path.read_text()), oracle.numbers()
    assert stored["source"] == json.loads(json.dumps(asked["source"]))
    for kind in ("cases", "updates"):
        assert len(stored[kind]) == len(asked[kind])
        for theirs, ours in zip(stored[kind], asked[kind], strict=True):
            assert differing(theirs, ours, 1e-9) == []
