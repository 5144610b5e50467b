"""How many examples hypothesis draws where a test of every trainer or family takes seconds."""

from __future__ import annotations

import os

from hypothesis import settings

NIGHTLY = "nightly"


def dear(number: int) -> settings:
    """`number` examples in `make nightly`; in `make test` a fifth of them, and never under five."""
    at_night = os.environ.get("HYPOTHESIS_PROFILE") == NIGHTLY
    return settings(max_examples=number if at_night else max(number // 5, 5))
