"""Values that a recorder is handed are refused where the column cannot mean them.

Log-probs are taken as they are, NaN, infinite and positive ones too: a diagnosis names those, and
their rows must not be missing from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.frozen import dataclass
from rcdiag.table.recorder_padding import wrong
from rcdiag.table.schema import column_spec

_INT64 = np.iinfo(np.int64)
# bfloat16 rounds an entropy of almost 0 to a little below it; a log-prob is further away.
BELOW_ZERO = -0.05


@dataclass(frozen=True, slots=True)
class Range:
    """What a value of one row may be, in words, and as a test of a number."""

    expected: str
    accepts: Callable[[float], bool]
    whole: bool = False


_FINITE = Range("a number, or NaN or None where it is unknown", lambda value: not math.isinf(value))
RANGES = {
    "temperature": Range(
        "a number above 0, by which logits are divided; of greedy samples it is None",
        lambda value: 0.0 < value < math.inf,
    ),
    "top_p": Range("a number above 0, and 1 at most", lambda value: 0.0 < value <= 1.0),
    "min_p": Range("a number from 0 to 1", lambda value: 0.0 <= value <= 1.0),
    "top_k": Range("a whole number; 0 and -1 mean off", lambda value: value >= -1, whole=True),
    "step": Range("a whole number from 0 on", lambda value: 0 <= value <= _INT64.max, whole=True),
    "reward": _FINITE,
    "advantage": _FINITE,
}
# Where one row has a value, all have: rows without one cannot be told apart, or put in order.
NEVER_NULL = ("group_id", "sample_id", "step")


def check_row_values(name: str, values: Sequence[Any]) -> None:
    """Refuse the first value, one of each row, that a column of rcdiag's cannot hold."""
    if all(value is None for value in values):
        return
    expected = getattr(column_spec(name), "expected", "")
    for row, value in enumerate(values):
        if value is None:
            if name in NEVER_NULL:
                raise wrong(name, row, "it is None", "give it for every row, or for none")
            continue
        if name in RANGES:
            _check_range(name, row, value, RANGES[name])
        elif isinstance(value, int) and not _INT64.min <= value <= _INT64.max:
            raise wrong(name, row, f"it is {value}, beyond int64", f"it is {expected}")
        elif name in ("group_id", "sample_id", "engine") and not isinstance(
            value, (str, int, np.integer)
        ):
            raise wrong(name, row, f"it is {value!r}", f"it is {expected}")


def _check_range(name: str, row: int, value: Any, known: Range) -> None:
    """Refuse what is no number, and a number that has no meaning here."""
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    if isinstance(value, (bool, np.bool_)):
        is_number = name == "reward"  # right or wrong is a reward of 1 or 0
    if not is_number or (known.whole and not float(value).is_integer()) or not known.accepts(value):
        raise wrong(name, row, f"it is {value!r}", f"it is {known.expected}")


def check_entropy(
    name: str, flat: NDArray[Any], counted: NDArray[np.bool_], lengths: NDArray[np.int64]
) -> None:
    """Refuse an entropy below 0 at a token that the policy sampled, which no distribution has."""
    bad = (flat < BELOW_ZERO) & counted
    if bad.any():
        at = int(np.argmax(bad))
        row = int(np.searchsorted(np.cumsum(lengths), at, side="right"))
        raise wrong(name, row, f"it holds {flat[at]}", "an entropy is 0 or more; is it a log-prob?")
