"""Choice of the rows that the model reads."""

from __future__ import annotations

import time

import numpy as np

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.experiments.hypothesis_tester import Counts
from rcdiag.diagnosis.experiments.rescored_sample import passage_of
from rcdiag.engines.changes import Forward

FEWEST_ROWS = 16  # that are read, however short the time
TIMED = 4  # rows on which the time of a pass is measured


def chosen_rows(case: Case, most: int) -> Counts:
    """Choose at most `most` rows spread over a case, in blocks of 16 neighbours."""
    count = len(case.lengths)
    if count <= most:
        return np.arange(count)
    starts = np.linspace(0, count - 16, max(most // 16, 1)).astype(np.int64)
    return np.unique((starts[:, None] + np.arange(16)).ravel())


def rows_in_time(
    case: Case, forward: Forward, most: int, deadline: float | None, checkpoints: int
) -> Counts:
    """Choose at most `most` rows, fewer if the deadline is near.

    The model's pass, its bfloat16 pass and each checkpoint read them; half of the time is reserved
    for that.
    """
    rows = chosen_rows(case, most)
    if deadline is None or len(rows) <= FEWEST_ROWS:
        return rows
    assert case.prompt_ids is not None
    first = [row for row in rows if len(case.prompt_ids.row(row)) and case.lengths[row]][:TIMED]
    passages = [passage_of(case, int(row)) for row in first]
    forward.log_probs(passages[:1])  # loads the model, which no later row takes
    began = time.monotonic()
    forward.log_probs(passages)
    now = time.monotonic()
    of_row = (now - began) / max(len(first), 1)
    budget = 0.5 * (deadline - now) / (2 + checkpoints)
    in_time = max(int(budget / max(of_row, 1e-9)), FEWEST_ROWS)
    return rows if in_time >= len(rows) else chosen_rows(case, in_time)
