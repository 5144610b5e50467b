"""Tables with two faults at once."""

from __future__ import annotations

from tests.faults.other import (  # noqa: F401 - each registers its kinds
    alignment,
    contexts,
    decoding,
    function,
    honest,
    precision,
    recording,
    weights,
)
from tests.faults.other.registry import pair

for first, second in (
    ("temperature-raw-recorded", "shift-some-rows"),
    ("stale-weights, trained", "sentinel"),
    ("top-p-renormalised", "nan-log-probs"),
    ("stale-weights, interpolated", "floor-clip"),
    ("trainer-without-temperature", "stale-weights, trained"),
    ("replica-unsynced", "duplicated-rows"),
    ("stale-weights, trained", "rows-swapped"),
    ("temperature-raw-recorded", "zero-placeholder"),
):
    pair(first, second)
