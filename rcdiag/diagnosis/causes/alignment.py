"""Log-probs that belong to other tokens: shifts, swapped rows, text that was encoded again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rcdiag.diagnosis.case import Case, Flags
from rcdiag.diagnosis.causes.cause import (
    CLEAR,
    EXACT,
    GUESS,
    WEAK,
    Suspicion,
    fact,
    shipped,
    shipped_family,
)
from rcdiag.diagnosis.causes.columns import side_of
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.features.alignment import GAIN, LAGS, LEAST_COMPARED
from rcdiag.diagnosis.thresholds import (
    COARSE,
    FEW,
    FEWEST_OF_PATTERN,
    FEWEST_OF_ROW,
    HALF,
    LARGE,
    MOST,
    NEARLY_ALL,
    PART,
    SAME,
    SHOWN,
)
from rcdiag.formats import listed, plural
from rcdiag.table.trajectories import REENCODED

SHIFT_SLUGS = ("shift-by-one", "shift-some-rows", "shift-after-tool")
# Share of the misfitting rows that must fit another row's column, where misfits are a large part of
# the table: so many do not fit each other by chance.
EXPLAINED_BY_MANY = 0.3


def _shift(features: Features) -> Suspicion | None:
    """Return the shift that is present: of all rows, of some rows, or after the first turn."""
    if (within := _shift_within_rows(features)) is not None:
        return within
    alignment = features.alignment
    shifted = alignment.shift != 0
    distinct = alignment.distinct_texts(shifted)
    if distinct < 2 or not alignment.differ_most(shifted):
        return None
    first = alignment.first_turn
    share_first = alignment.share_shifted(first)
    share_later = alignment.share_shifted(~first)
    lags = alignment.shift[shifted]
    lag = int(np.sign(np.median(lags))) * int(np.median(np.abs(lags)))
    if np.mean(lags == lag) < MOST or max(share_first, share_later) < FEW:
        return None
    several = (~first & alignment.long_enough).sum() >= FEWEST_OF_PATTERN
    rows = np.unique(alignment.row_of_turn[shifted])
    share = len(rows) / max(int((features.case.tokens.per_row > 0).sum()), 1)
    if several and share_later > PART and share_first < PART * share_later:
        slug, text = "shift-after-tool", "From the second turn on"
    elif max(share_first, share_later) > NEARLY_ALL:
        slug, text = "shift-by-one", "In all rows"
    else:
        slug, text = "shift-some-rows", f"In {len(rows)} rows ({share:.0%})"
    moved = alignment.misplaced_policy(shifted[alignment.turn])
    later = (lag > 0) == (moved == features.case.sampler)
    zero = float(np.nanmedian(alignment.unshifted[shifted]))
    best = float(np.nanmedian(alignment.correlations[LAGS.index(lag)][shifted]))
    return Suspicion(
        slug=slug,
        confidence=EXACT if distinct >= FEWEST_OF_PATTERN else GUESS,
        message=f"{text} `{moved}` is {abs(lag)} token{'s' if abs(lag) > 1 else ''} "
        f"{'later' if later else 'earlier'} than the other column: their correlation is "
        f"{best:.2f} there and {zero:.2f} without the shift.",
        evidence=[
            fact(
                "correlation of both columns",
                "they match once one column is shifted",
                unshifted=zero,
                shifted=best,
                lag=lag,
                out_of_place=moved,
            ),
            fact(
                "share of turns that are shifted",
                text.lower(),
                first=share_first,
                later=share_later,
            ),
        ],
        side=side_of(features, moved),
        share_of_rows=share,
        also_possible=[] if slug == "shift-by-one" else ["shift-by-one"],
        repaired=_shifted_back(features, lag, moved),
    )


def _shift_within_rows(features: Features) -> Suspicion | None:
    """Look for a few rows in which one column is displaced from some token on.

    They hold the mismatch while all others agree to rounding, and most of them fit at one lag.
    """
    few, case, alignment = features.few_places, features.case, features.alignment
    if few is None or not few.of_rows:
        return None
    begin, owner = features.log_ratios.first_large, case.tokens.owner
    displaced = np.isin(owner, few.places) & (np.arange(len(owner)) >= begin[owner])
    rows, correlations = alignment.correlations_of(displaced)
    unshifted, best = correlations[LAGS.index(0)], correlations.argmax(axis=0)
    fits = (correlations.max(axis=0) > SAME) & (correlations.max(axis=0) - unshifted > GAIN)
    index = int(np.bincount(best[fits], minlength=1).argmax())
    fits &= best == index
    if fits.sum() < max(FEWEST_OF_PATTERN, MOST * len(rows)):
        return None
    position = case.tokens.position[begin[rows]]
    if np.median(position) < FEWEST_OF_ROW:
        return None  # a shift of whole rows shows from their first tokens on
    moved, lag = alignment.misplaced_policy(displaced), LAGS[index]
    later = (lag > 0) == (moved == case.sampler)
    where = [f"row {case.row[row]}: token {at}" for row, at in zip(rows, position, strict=True)]
    zero, at_lag = (float(np.median(values[fits])) for values in (unshifted, correlations[index]))
    share = len(few.places) / max(int((case.tokens.per_row > 0).sum()), 1)
    return Suspicion(
        slug="shift-some-rows",
        confidence=EXACT,
        message=f"In {len(few.places)} rows ({share:.0%}) `{moved}` is {plural(abs(lag), 'token')} "
        f"{'later' if later else 'earlier'} than the other column from some token on "
        f"({listed(where, SHOWN)}): their correlation is {at_lag:.2f} there and {zero:.2f} without "
        "the shift.",
        evidence=[
            fact(
                "correlation of both columns from the first large log-ratio of a row on",
                "they match once one column is shifted",
                unshifted=zero,
                shifted=at_lag,
                lag=lag,
                out_of_place=moved,
            )
        ],
        side=side_of(features, moved),
        share_of_rows=share,
        also_possible=["retokenised"],
        repaired=case.without_rows(np.isin(np.arange(len(case.lengths)), few.places)),
    )


def _shifted_back(features: Features, lag: int, moved: str) -> Case:
    """Return the case with a policy's shifted turns moved back; the tokens at their ends are
    masked.

    Turns that are not surely shifted or unshifted are masked too: those that are too short, and
    those that fit only slightly better at the lag.
    """
    alignment, case = features.alignment, features.case
    tokens = case.tokens
    own, ahead = (tokens.sampler, lag) if moved == case.sampler else (tokens.trainer, -lag)
    move = alignment.shift[alignment.turn] == lag
    source = np.arange(len(tokens)) + ahead
    inside = (source >= 0) & (source < len(tokens))
    source = np.clip(source, 0, len(tokens) - 1)
    same = inside & (alignment.turn[source] == alignment.turn)
    same &= tokens.place[source] == tokens.place + ahead  # not next to a token that is left out
    values = case.log_probs[moved].copy()
    values[tokens.place[move & same]] = own[source[move & same]]
    better = alignment.correlations[LAGS.index(lag)] > alignment.unshifted
    lost = ((alignment.shift != 0) | ~alignment.long_enough | better)[alignment.turn]
    lost &= ~(move & same)
    return case.with_log_probs(moved, values).without_tokens(case.flagged(lost))


def _rows_swapped(features: Features) -> Suspicion | None:
    alignment, rows = features.alignment, len(features.case.lengths)
    exchanged = alignment.best_row != np.arange(rows)
    full = features.case.tokens.per_row >= LEAST_COMPARED
    share = float(exchanged.sum() / max(full.sum(), 1))
    if share < FEW:
        return None
    # The columns of a swapped row are uncorrelated. If they correlate, short or near-certain rows
    # fit each other by chance.
    comparable = exchanged & (
        np.bincount(alignment.row_of_turn[alignment.long_enough], minlength=rows) > 0
    )
    closed = float(np.mean(exchanged[alignment.best_row[exchanged]]))
    if closed <= HALF and comparable.any() and np.mean(alignment.misfit[comparable]) < HALF:
        return None
    misfit = alignment.misfit & full
    explained = float((exchanged & misfit).sum() / max(misfit.sum(), 1)) if misfit.any() else 1.0
    # Near-certain rows fit several others, so that not every swapped row finds its partner.
    if explained < (EXPLAINED_BY_MANY if share > PART else HALF):
        return None
    first = int(np.flatnonzero(exchanged)[0])
    moved = alignment.misplaced_policy(exchanged[features.case.tokens.owner])
    return Suspicion(
        confidence=EXACT if closed > HALF else WEAK,
        message=f"In {int(exchanged.sum())} of {int(full.sum())} rows `{moved}` has the log-probs "
        f"of another row: the sampler's in row {features.case.row[first]} match the trainer's in "
        f"row {features.case.row[alignment.best_row[first]]}.",
        evidence=[
            fact(
                "rows that match another row better",
                "the row order differs between the columns",
                share=share,
                exchanged_in_pairs=closed,
                out_of_place=moved,
            )
        ],
        side=side_of(features, moved),
        share_of_rows=share,
        also_possible=[],
        repaired=_put_back(features, exchanged, moved),
    )


def _put_back(features: Features, exchanged: Flags, moved: str) -> Case:
    """Return the case with swapped rows of a policy moved back; other misfits are masked."""
    case, partner = features.case, features.alignment.best_row
    taken_out = case.table_mask & ~case.mask
    own = case.log_probs[moved]
    values = own.copy()
    lost = np.zeros(len(case.mask), np.bool_)
    home = np.zeros(len(case.lengths), np.bool_)
    for row in np.flatnonzero(exchanged):
        source, place = (row, partner[row]) if moved == case.sampler else (partner[row], row)
        size = min(case.lengths[source], case.lengths[place])
        start, target = case.start[source], case.start[place]
        values[target : target + size] = own[start : start + size]
        # Tokens that were masked as invalid in the source row stay masked in the target row.
        lost[target : target + size] = taken_out[start : start + size]
        lost[target + size : target + case.lengths[place]] = True
        home[place] = True
    homeless = (exchanged | features.alignment.misfit) & ~home
    repaired = case.with_log_probs(moved, values).without_tokens(lost)
    return repaired.without_rows(homeless)


def _logits_not_shifted(features: Features) -> Suspicion | None:
    """Detect log-probs of tokens directly after themselves: log p(y_t | y_<=t) for y_t.

    The sampler's log-prob of the next token is of the same distribution. Where the next token is
    the same one, the two values are equal; where it is another, the probabilities sum to at most 1.
    """
    tokens = features.case.tokens
    here = np.flatnonzero((np.diff(tokens.owner) == 0) & (np.diff(tokens.place) == 1))
    after_itself, own = tokens.trainer[here], tokens.sampler[here]
    following = tokens.sampler[here + 1]
    repeated = tokens.token_id[here] == tokens.token_id[here + 1]
    # In a loop every repeat is as certain as the one before.
    again = repeated & (np.abs(following - own) > COARSE)
    if again.sum() < FEWEST_OF_PATTERN or features.log_ratios.rms < LARGE:
        return None
    from_next = float(np.median(np.abs(after_itself - following)[again]))
    from_own = float(np.median(np.abs(after_itself - own)[again]))
    above_one = ~repeated & (np.exp(after_itself) + np.exp(following) > 1.0 + COARSE)
    if from_next >= PART * from_own or above_one.mean() > FEW:
        return None
    trainer = str(features.case.trainer)
    return Suspicion(
        confidence=CLEAR,
        message=f"`{trainer}_log_probs` were read one position too late, where the token itself is "
        f"in the context: where a token occurs twice in a row ({int(again.sum()):,} times), the "
        f"trainer's value at the first is {from_next:.2g} nats from the sampler's at the second "
        f"and {from_own:.2g} from the sampler's at the first (medians). The logits were not "
        "shifted by one.",
        evidence=[
            fact(
                "where a token occurs twice in a row, median distance in nats",
                "the value of the first is that of the second",
                tokens=int(again.sum()),
                from_the_second=from_next,
                from_the_first=from_own,
            )
        ],
        also_possible=[],
    )


def _retokenised(features: Features) -> Suspicion | None:
    """Read the checks that a conversion made of tokens which it had to encode from text."""
    facts = features.case.metadata.get(REENCODED)
    if not isinstance(facts, Mapping):
        return None
    to_text = _share_off(facts, "rows_decoding_to_their_text", "rows")
    to_count = _share_off(facts, "rows_with_the_same_token_count", "rows_with_token_count")
    share = max(to_text or 0.0, to_count or 0.0)
    if share < FEW:
        return None
    evidence = [
        fact(f"share of responses {words}", "other tokens than these were sampled", share=value)
        for words, value in (
            ("whose tokens decode to another text", to_text),
            ("whose number of tokens is not the recorded one", to_count),
        )
        if value is not None
    ]
    return Suspicion(
        confidence=EXACT,
        message="The tokens of this table were encoded from text: at least "
        f"{share:.0%} of the responses have other tokens than those that were sampled, and the "
        "recorded log-probs do not belong to them.",
        evidence=evidence,
        side="recorder",
        share_of_rows=share,
        also_possible=[],
    )


def _share_off(facts: Mapping[str, Any], good: str, rows: str) -> float | None:
    """Return 1 - facts[good] / facts[rows], the share of rows that fail; None where unknown."""
    count, whole = facts.get(good), facts.get(rows)
    if not isinstance(count, int) or not isinstance(whole, int) or not 0 <= count <= whole:
        return None
    return 1.0 - count / whole if whole else None


ALIGNMENT = (
    *shipped_family(SHIFT_SLUGS, "alignment", _shift),
    shipped("rows-swapped", "alignment", _rows_swapped),
    shipped("logits-not-shifted", "alignment", _logits_not_shifted),
    shipped("retokenised", "alignment", _retokenised, needs_two=False),
)
