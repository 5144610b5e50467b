"""Detects responses whose end token was cut off, by the model's probability of ending there."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.case import spread_over
from rcdiag.diagnosis.causes.cause import Suspicion, fact
from rcdiag.diagnosis.experiment_fit import ExperimentFit
from rcdiag.diagnosis.experiments.rescored_sample import RescoredSample, passage_of
from rcdiag.diagnosis.experiments.thresholds import CONFIRM_ROWS
from rcdiag.diagnosis.experiments.unlogged_sampling import make_suspicion
from rcdiag.diagnosis.thresholds import FEWEST_ROWS, HALF, TRIED
from rcdiag.engines.changes import Forward, Passage


def cause_in_missing_eos(sample: RescoredSample, forward: Forward) -> Suspicion | None:
    """Return `mask-drops-last` if no response has an end token although most were about to end.

    A response that was cut at a length limit breaks off in the middle, where an end is unlikely.
    """
    case, ends = sample.case, forward.tensors.end_ids[:TRIED]
    sampled = case.table_mask
    last = case.start[sample.rows] + case.lengths[sample.rows] - 1
    whole = sample.rows[sampled[last]]
    if not ends or len(whole) < FEWEST_ROWS or np.isin(case.token_id[last], ends).any():
        return None
    asked = whole[spread_over(len(whole), CONFIRM_ROWS)]
    room = forward.tensors.context
    asked = np.array(
        [
            row
            for row in asked
            if room is None or len(sample.prompt(int(row))) + int(case.lengths[row]) < room
        ]
    )
    if len(asked) < FEWEST_ROWS:
        return None
    probability = np.zeros(len(asked))
    for end in ends:
        probability += np.exp(forward.log_probs([_ended(sample, int(row), end) for row in asked]))
    share = float(
        np.mean(probability > HALF)
    )  # the end was likelier than all other tokens together
    if share < HALF:
        return None
    median = float(np.median(probability))
    # The residual at other tokens does not matter for the ends: scale and tail keep their default.
    fit = ExperimentFit(
        kind="tokens",
        explained=share,
        z=(share - HALF) * 2.0 * float(np.sqrt(len(asked))),
        tokens=len(asked),
        rows=len(asked),
    )
    return make_suspicion(
        "mask-drops-last",
        fit,
        f"No response has an end token, and after the last token of {share:.0%} of them "
        f"the model would end, with a median probability of {median:.2f}: the end token was cut "
        "off, so that the policy is not trained to end.",
        [
            fact(
                "probability of the end token after the last stored token",
                "the end token is missing",
                **{"value": median, "share of responses that were to end": share},
            )
        ],
        side="recorder",
        share_of_rows=share,
        also_possible=[],
    )


def _ended(sample: RescoredSample, row: int, end: int) -> Passage:
    """Return prompt and response of a row with an end token appended; only that is scored."""
    passage = passage_of(sample.case, row, 1.0)
    ids = np.append(passage.ids, np.int32(end))
    return Passage(ids, np.array([len(ids) - 1]), row, None, passage.prefix)
