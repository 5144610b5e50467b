"""How many examples hypothesis draws where a test of every trainer or family takes seconds."""

from __future__ import annotations

import os

from hypothesis import settings

WEEKLY = "weekly"


def dear(number: int) -> settings:
    """`number` examples in `make weekly`; elsewhere a fifth of them, and never under five."""
    all_of_them = os.environ.get("HYPOTHESIS_PROFILE") == WEEKLY
    return settings(max_examples=number if all_of_them else max(number // 5, 5))
