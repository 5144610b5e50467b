"""A trainer's own log stands beside our numbers here: which keys, which steps, and why they differ.

`names` knows the keys of a log that are ours, `sides` chooses steps and preset, `rows` reads the
table again where numbers differ, for the `plans` that are tried, `reasons` computes what could be
the reason, `verdict` chooses, and `compare` makes the result.
"""

from __future__ import annotations

from rcdiag.usecases.logged.keys import check_keys
from rcdiag.usecases.logged.run import compared

__all__ = ["check_keys", "compared"]
