"""How many examples hypothesis draws for tests whose examples are dear."""

from __future__ import annotations

import os

from hypothesis import settings

NIGHTLY = "nightly"


def dear(number: int) -> settings:
    """`number` examples in `make nightly`, a fifth in `make test`: where one takes over 30 ms."""
    at_night = os.environ.get("HYPOTHESIS_PROFILE") == NIGHTLY
    return settings(max_examples=number if at_night else max(number // 5, 5))
