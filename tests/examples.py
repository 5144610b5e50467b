"""Number of hypothesis examples for tests that take seconds for every trainer or family."""

from __future__ import annotations

import os

from hypothesis import settings

WEEKLY = "weekly"


def dear(number: int) -> settings:
    """Use `number` examples in `make weekly`, elsewhere a fifth of them, at least five."""
    all_of_them = os.environ.get("HYPOTHESIS_PROFILE") == WEEKLY
    return settings(max_examples=number if all_of_them else max(number // 5, 5))
