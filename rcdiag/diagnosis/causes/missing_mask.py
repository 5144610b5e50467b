"""Tool tokens with NaN log-probs in a table without a response mask."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.case import Case, Flags

SPAN = 3  # tokens of the shortest span that is taken for a tool's output
# Share of NaN tokens in spans between sampled tokens from which on they are tool tokens. A forward
# pass that overflows leaves NaN to the end of the response, and single NaNs are scattered.
IN_SPANS = 0.8


def tool_spans(case: Case) -> Flags | None:
    """Return the NaN tokens [response tokens] of a multi-turn table whose mask is missing.

    They are spans of NaN inside responses, with sampled tokens on both sides, where no token of the
    table is masked. None where NaN is anything else, or absent.
    """
    own = case.mask if case.own_mask is None else case.own_mask
    if not own.all():
        return None
    pair = [case.sampler] if case.trainer is None else [case.sampler, case.trainer]
    nan = np.any([np.isnan(case.log_probs[policy]) for policy in pair], axis=0)
    if not nan.any():
        return None
    first_of_row = case.position == 0
    last_of_row = case.position == case.lengths[case.owner] - 1
    begins = np.flatnonzero(nan & (first_of_row | ~np.roll(nan, 1)))
    ends = np.flatnonzero(nan & (last_of_row | ~np.roll(nan, -1)))
    inside = ~first_of_row[begins] & ~last_of_row[ends]
    lengths = ends - begins + 1
    if lengths[inside & (lengths >= SPAN)].sum() < IN_SPANS * nan.sum():
        return None
    return nan
