"""Rows that were written more than once.

They are weighed in the stage of storage: tests of shares count each row once.
"""

from __future__ import annotations

import hashlib

import numpy as np

from rcdiag.diagnosis.case import Array, Flags, RowFacts
from rcdiag.diagnosis.causes.cause import EXACT, WEAK, Suspicion, fact, shipped
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.thresholds import FEW, HARDLY_EVER, RARE

# Rows with a log-prob sum below this do not occur twice by chance.
UNLIKELY = -9.0


def _duplicated_rows(features: Features) -> Suspicion | None:
    case = features.case
    values = case.log_probs[case.sampler]
    seen: dict[bytes, int] = {}
    again = np.zeros(len(case.lengths), np.bool_)
    likely = values
    if case.trainer is not None:
        # Log-probs recorded before the temperature make answers look less likely than they were.
        other = case.log_probs[case.trainer]
        likely = np.where((other < 0) & (values < 0), np.fmax(values, other), values)
    total = np.bincount(
        case.owner[case.mask],
        _surprise(likely[case.mask], tools_masked=not case.mask.all()),
        len(case.lengths),
    )
    # Compare prompts, not group ids: merged dumps have one prompt under several ids.
    prompts = case.facts.prompt
    # Log-probs at temperature 1 over the whole vocabulary understate the probability of answers
    # that were sampled from a more peaked distribution: then require twice the surprisal.
    unlikely = 2 * UNLIKELY if _sharper(case.facts) else UNLIKELY
    greedy = _greedy(case.facts, len(case.lengths))
    for index in np.flatnonzero(case.lengths > 0):
        tokens = slice(case.start[index], case.start[index] + case.lengths[index])
        digest = hashlib.blake2b(case.token_id[tokens].tobytes(), digest_size=16)
        digest.update(values[tokens].tobytes())
        if prompts is not None:
            digest.update(prompts[index].tobytes())
        key = digest.digest()
        if key in seen and total[index] < unlikely and not greedy[index]:
            again[index] = True
        seen.setdefault(key, int(index))
    share = float(again.mean())
    if again.sum() < 2:
        return None
    first = int(case.row[np.flatnonzero(again)[0]])
    return Suspicion(
        confidence=EXACT if share > FEW else WEAK,
        message=f"{int(again.sum()):,} of {len(again):,} rows repeat another row to the last bit, "
        f"the first of them row {first}: answers this improbable are not sampled twice.",
        evidence=[fact("share of repeated rows", "rows were written twice", share=share)],
        side="storage",
        share_of_rows=share,
        also_possible=[],
        repaired=case.without_rows(again),
    )


def _greedy(facts: RowFacts, rows: int) -> Flags:
    """Flag rows that declare greedy decoding, whose answers to one prompt are all equal, [rows]."""
    flags = np.zeros(rows, np.bool_)
    if facts.temperature is not None:
        flags |= facts.temperature == 0.0
    if facts.top_k is not None:
        flags |= facts.top_k == 1
    return flags


def _sharper(facts: RowFacts) -> bool:
    """Tell whether rows declare a temperature below 1 or a kept set."""
    below_one = (facts.temperature, facts.top_p)
    above_zero = (facts.top_k, facts.min_p)
    return any(v is not None and bool((v < 1.0).any()) for v in below_one) or any(
        v is not None and bool((v > 0).any()) for v in above_zero
    )


def _surprise(values: Array, *, tools_masked: bool) -> Array:
    """Return the log-probs of tokens; 0 for text of tools and where a value is no log-prob.

    Text of tools is much less likely than sampled text. The mask may count some of it as sampled
    even where it leaves out tokens; where it leaves out none, all rare tokens may be text of tools.
    """
    least = HARDLY_EVER if tools_masked else RARE
    return np.where((values < 0) & (values > least), values, 0.0)


DUPLICATED_ROWS = shipped("duplicated-rows", "storage", _duplicated_rows, needs_two=False)
