"""Compare a trainer's own log with rcdiag's numbers: which keys, which steps, why they differ.

`keys` finds the keys of a log that rcdiag computes, `side_by_side` chooses steps and preset,
`likely_plans` lists other plans that may give the logged numbers, `read_again` reads the table
once more for these, `reasons` computes each possible reason, and `run` chooses among them.
"""

from __future__ import annotations

from rcdiag.usecases.logged.keys import check_keys
from rcdiag.usecases.logged.run import compared

__all__ = ["check_keys", "compared"]
