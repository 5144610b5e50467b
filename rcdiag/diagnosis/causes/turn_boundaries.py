"""Tokens between turns that are not those of the chat template.

An agent loop that appends a tool's message to the sampled tokens renders that message alone. The
template puts a token between two messages (Qwen: a newline between <|im_end|> and <|im_start|>).
The model stops before this token and the rendered message begins after it, so that it is lost at
every boundary, while messages that were rendered together have it between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Case, Counts, Flags
from rcdiag.diagnosis.causes.cause import CLEAR, EXACT, Suspicion, fact, shipped
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.thresholds import FEW, FEWEST_OF_PATTERN, NEARLY_ALL, TRIED
from rcdiag.table.trajectories import CHAT_TEMPLATE


class Boundaries(Struct, frozen=True):
    """The ends of sampled turns, and which tokens follow there and between other messages.

    `end` ends a message and `opening` begins the next one; `separator` stands between them.
    """

    end: int
    separator: int
    opening: int
    kept: Flags  # [boundaries] the separator follows once
    lost: Flags  # [boundaries] the opening follows without a separator
    added: Flags  # [boundaries] the end or the separator occurs twice
    row: Counts  # [boundaries]
    elsewhere: int  # number of separators between messages that were rendered together


def boundaries_of(case: Case) -> Boundaries | None:
    """Return the turn boundaries of a case; None where no separator is known for them."""
    sampled = case.mask if case.own_mask is None else case.own_mask
    count = len(sampled)
    ids = np.pad(case.token_id.astype(np.int64), (0, 3), constant_values=-1)
    here, then, after, last = (ids[step : step + count] for step in range(4))
    rows = np.pad(case.owner, (0, 2), constant_values=-1)
    message = np.pad(~sampled, (0, 2))
    followed = np.ones(count, np.bool_)  # by two tokens of messages of the same row
    for step in (1, 2):
        followed &= message[step : step + count] & (rows[step : step + count] == case.owner)
    ends = np.flatnonzero(sampled & followed)
    if len(ends) < FEWEST_OF_PATTERN:
        return None
    end = Counter(here[ends].tolist()).most_common(1)[0][0]
    ends = ends[here[ends] == end]
    inner = np.flatnonzero(~sampled & followed & (here == end))
    pairs = Counter(zip(*(part[[*inner, *ends]].tolist() for part in (then, after)), strict=True))
    # One of the pairs of tokens that follow the end of a message most often.
    for (separator, opening), places in pairs.most_common(TRIED):
        between = (then[inner] == separator) & (after[inner] == opening)
        if separator in (end, opening) or places < FEWEST_OF_PATTERN:
            continue
        if len(inner) and between.mean() < NEARLY_ALL:
            continue
        lost = then[ends] == opening
        doubled = (then[ends] == separator) & (after[ends] == separator)
        added = (doubled | ((then[ends] == end) & (after[ends] == separator))) & (
            last[ends] == opening
        )
        kept = (then[ends] == separator) & (after[ends] == opening)
        if np.mean(lost | added | kept) >= NEARLY_ALL:
            elsewhere = int(between.sum())
            return Boundaries(
                end, separator, opening, kept, lost, added, case.owner[ends], elsewhere
            )
    return None


def _turn_boundary(features: Features) -> Suspicion | None:
    """Look for a separator that is missing or doubled where sampled turns end."""
    stated = features.case.metadata.get(CHAT_TEMPLATE)
    if isinstance(stated, Mapping) and (found := _of_template(stated)) is not None:
        return found
    one = boundaries_of(features.case)
    if one is None:
        return None
    wrong, count = one.lost | one.added, len(one.row)
    if wrong.sum() < FEWEST_OF_PATTERN or wrong.mean() < FEW:
        return None
    lost = one.lost.sum() >= one.added.sum()
    what = f"token {one.separator} is missing" if lost else "a token occurs twice"
    known = (
        f"where messages were rendered together it is there, at {one.elsewhere:,} places"
        if one.elsewhere
        else f"it stands at {int(one.kept.sum()):,} others"
    )
    return Suspicion(
        confidence=EXACT if one.elsewhere >= FEWEST_OF_PATTERN else CLEAR,
        message=f"At {int(wrong.sum()):,} of {count:,} ends of sampled turns {what} between "
        f"{one.end} and {one.opening}; {known}. The tokens are not those of the chat template, "
        "and the context deviates more with each turn.",
        evidence=[
            fact(
                "tokens between turns",
                "the separator is lost" if lost else "a token is added",
                boundaries=count,
                lost=int(one.lost.sum()),
                added=int(one.added.sum()),
                kept=int(one.kept.sum()),
                between_other_messages=one.elsewhere,
                end=one.end,
                separator=one.separator,
                opening=one.opening,
            )
        ],
        share_of_rows=len(np.unique(one.row[wrong])) / max(len(features.case.lengths), 1),
        also_possible=[],
    )


def _of_template(facts: Mapping[str, Any]) -> Suspicion | None:
    """Read the result of a conversion that compared the turns' prompts with the chat template."""
    numbers = [facts.get(name) for name in ("boundaries", "lost", "added", "rows", "rows_off")]
    if not all(isinstance(number, int) for number in numbers):
        return None
    boundaries, lost, added, rows, rows_off = (int(number or 0) for number in numbers)
    if lost + added < FEWEST_OF_PATTERN or lost + added < FEW * boundaries:
        return None
    says = "is missing where" if lost >= added else "is added, although not where"
    return Suspicion(
        confidence=EXACT,
        message=f"At {lost + added:,} of {boundaries:,} ends of sampled turns token "
        f"{facts.get('token')} {says} the chat template puts it. The context deviates more with "
        "each turn.",
        evidence=[
            fact(
                "prompts compared with the chat template",
                "the separator is lost" if lost >= added else "a token is added",
                boundaries=boundaries,
                lost=lost,
                added=added,
            )
        ],
        share_of_rows=min(rows_off / max(rows, 1), 1.0),
        also_possible=[],
    )


TURN_BOUNDARY = shipped("turn-boundary", "recording", _turn_boundary, needs_two=False)
