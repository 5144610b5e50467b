"""The two sides saw different contexts: truncated, padded or other prompts, dropped turns."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, lgamma

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Array, Case, Counts, Flags
from rcdiag.diagnosis.causes.cause import CLEAR, LIKELY, WEAK, Cause, Suspicion, fact, shipped
from rcdiag.diagnosis.features import ENGINE_NOISE, LARGE_MISMATCH, Features, LogRatios
from rcdiag.diagnosis.features.log_ratios import FIRST_TOKENS
from rcdiag.diagnosis.features.uniform_guess import below_a_uniform_guess
from rcdiag.diagnosis.thresholds import (
    BY_CHANCE,
    COARSE,
    FEW,
    FEWEST_OF_PATTERN,
    FEWEST_ROWS,
    LISTED,
    MUCH_LARGER,
    ONE_SIDED,
    PART,
)
from rcdiag.formats import rough

# Sizes of the batches that rows may have been padded in.
BATCHES = (2, 4, 8, 16, 32, 64, 128)
LEAST_PADDED = 0.6  # share of the padded rows that must have a large mismatch


def _context(features: Features) -> Suspicion | None:
    """Look for a mismatch at the beginning of responses, which the prompt is nearest to.

    A much larger one is due to the prompt. One that only falls along the response may be due to
    weights that were updated while the sampler wrote it, too, and leaves the verdict open.
    """
    log_ratios = features.log_ratios
    much = log_ratios.first_tokens >= MUCH_LARGER
    if log_ratios.rms < LARGE_MISMATCH or not (much or log_ratios.fall_along_rows):
        return None
    other = "" if much else ", or one side's weights changed within responses"
    sure = much or below_a_uniform_guess(features.case.tokens).any()
    return Suspicion(
        confidence=LIKELY if much else WEAK,
        message=f"Log-ratios of the first three tokens are {rough(log_ratios.first_tokens)} times "
        "those of the others: the two sides saw different prompts, or the same at other positions"
        f"{other}.",
        evidence=[
            fact(
                "rms log-ratio, first tokens / others",
                "the prompt differs",
                ratio=log_ratios.first_tokens,
            )
        ],
        verdict=None if sure else "inconclusive",
        also_possible=[
            "prompt-template",
            "bos-differs",
            "attention-to-padding",
            "prompt-truncated",
            "position-ids",
            *([] if much else ["packing-leak", "in-flight-update", "prefix-cache-stale"]),
        ],
    )


def _context_stripped(features: Features) -> Suspicion | None:
    """Look for rows that agree in their first turn but not in later ones."""
    agree = features.first_turns_agree
    if agree is None or features.log_ratios.rms < LARGE_MISMATCH:
        return None
    before, after = agree
    return Suspicion(
        confidence=CLEAR,
        message=f"The first turns agree ({before:.2g} nats rms) and later ones do not "
        f"({after:.2g}): one side does not see earlier turns or tool outputs.",
        evidence=[
            fact("rms log-ratio by turn", "later turns differ", first=before, later=after),
            fact(
                "rms log-ratio of the median row, turn after turn",
                "which turn differs most",
                value=[float(f"{value:.2g}") for value in features.by_turn.rms[:LISTED]],
            ),
        ],
        also_possible=["context-differs", "retokenised", "shift-after-tool"],
    )


def _prompts(case: Case, rows: Flags) -> int:
    """Count the distinct prompts of some rows: one per prompt group.

    Where the table names no groups, prompts of equal length are counted as one.
    """
    known = case.facts.group if case.facts.group is not None else case.facts.prompt_length
    return int(rows.sum()) if known is None else len(np.unique(known[rows]))


def _chance(case: Case, agreeing: Flags, others: Flags) -> float:
    """Return the p-value of exactly these prompts agreeing, if length played no role."""
    few, many = _prompts(case, agreeing), _prompts(case, others)
    # 1 / binomial(few + many, few)
    return exp(lgamma(few + 1) + lgamma(many + 1) - lgamma(few + many + 1))


class _Rows(Struct, frozen=True):
    """The mismatch of each row of a case, and the length of its prompt."""

    lengths: Counts  # [rows] tokens of the prompt
    rms: Array  # [rows] rms log-ratio, nats; NaN without a token
    known: Flags  # [rows] with a token

    @property
    def large(self) -> Flags:
        """Flag the rows that differ by more than two engines do, [rows]."""
        return self.known & (self.rms > LARGE_MISMATCH)


def _rows(features: Features) -> _Rows | None:
    """Return each row's mismatch and prompt length; None if lengths are unknown or rows agree."""
    lengths = features.case.facts.prompt_length
    if lengths is None or features.log_ratios.rms < LARGE_MISMATCH:
        return None
    rms = features.location.rms_of_rows
    return _Rows(lengths, rms, np.isfinite(rms))


def _best_limit(rows: _Rows) -> tuple[int, float] | None:
    """Return the prompt length that best separates agreeing rows from outliers, and its accuracy.

    Rows with prompts of up to that length should agree, longer ones not. None without two lengths.
    """
    values, place = np.unique(rows.lengths[rows.known], return_inverse=True)
    if len(values) < 2:
        return None
    large = np.bincount(place, rows.large[rows.known], len(values))
    agreeing = np.bincount(place, minlength=len(values)) - large
    explained = np.cumsum(agreeing) + large.sum() - np.cumsum(large)
    best = int(np.argmax(explained[:-1]))
    return int(values[best]), float(explained[best] / rows.known.sum())


def _share_agreeing_at_first(log_ratios: LogRatios, rows: Flags) -> float:
    """Return the share of `rows` [rows] whose first third of the tokens agrees to rounding."""
    tokens = log_ratios.tokens
    first = np.searchsorted(tokens.owner, np.arange(tokens.rows))
    index = np.arange(len(tokens)) - first[tokens.owner]
    early = index < np.maximum(tokens.per_row // 3, FIRST_TOKENS)[tokens.owner]
    squares = tokens.row_sums(np.where(early, log_ratios.values**2, 0.0))
    rms = np.sqrt(squares / np.maximum(tokens.row_sums(early.astype(np.float64)), 1))
    return float(np.mean(rms[rows] < ENGINE_NOISE)) if rows.any() else 0.0


def _prompt_truncated(features: Features) -> Suspicion | None:
    """Look for a prompt length up to which rows agree and beyond which they do not."""
    case, rows = features.case, _rows(features)
    best = None if rows is None else _best_limit(rows)
    if rows is None or best is None:
        return None
    rms, (first, explained) = rows.rms, best
    short, long = rows.known & (rows.lengths <= first), rows.known & (rows.lengths > first)
    if explained < 1.0 - FEW or min(short.sum(), long.sum()) < FEWEST_OF_PATTERN:
        return None
    if np.median(rms[short]) > ENGINE_NOISE:
        return None
    if _share_agreeing_at_first(features.log_ratios, long & rows.large) > PART:
        # a mismatch that starts within responses is a limit of the context, or other weights
        return None
    by_chance = _chance(case, short, long) >= BY_CHANCE
    if np.median(rms[long]) < COARSE:
        return None  # other weights make a mismatch of this size too, mostly at long, hard prompts
    next_ = int(rows.lengths[long].min())
    between = f"{first}" if next_ == first + 1 else f"{first} to {next_ - 1}"
    return Suspicion(
        confidence=WEAK if by_chance else CLEAR,
        message=f"Rows with prompts of up to {first} tokens agree ({np.median(rms[short]):.2g} "
        f"nats rms), longer ones do not ({np.median(rms[long]):.2g}): one side cuts prompts at "
        f"a limit of about {between} tokens.",
        evidence=[
            fact(
                "rms log-ratio by prompt length",
                "jumps at a length limit",
                short=np.median(rms[short]),
                long=np.median(rms[long]),
                limit=first,
                long_prompts=long.sum(),
            )
        ],
        share_of_rows=float(long.sum() / rows.known.sum()),
        also_possible=["context-differs", "position-ids"],
    )


def _longest_of_batch(case: Case, lengths: Counts, size: int) -> tuple[Flags, Flags]:
    """Flag the rows with the longest prompt of their batch, and those of whole batches, [rows]."""
    batch = case.row // size
    _, index, count = np.unique(batch, return_inverse=True, return_counts=True)
    longest = np.zeros(len(count), np.int64)
    np.maximum.at(longest, index, lengths)
    whole = (count == size)[index]
    return (lengths == longest[index]) & whole, whole


def _padding_counts(features: Features) -> Suspicion | None:
    """Look for a batch size for which padded rows differ and rows without padding agree."""
    case, rows = features.case, _rows(features)
    if rows is None or features.log_ratios.one_sided > ONE_SIDED:
        return (
            None  # padding moves log-probs both ways; a ban on tokens (min-tokens) moves them one
        )
    rms, known, large = rows.rms, rows.known, rows.large
    tried: list[tuple[float, int, Flags, Flags]] = []
    for size in BATCHES:
        longest, whole = _longest_of_batch(case, rows.lengths, size)
        bare, padded = longest & known, whole & known & ~longest
        if min(bare.sum(), padded.sum()) >= FEWEST_ROWS:
            tried.append((float(large[padded].mean() - large[bare].mean()), size, bare, padded))
    if not tried:
        return None
    _, size, bare, padded = max(tried, key=lambda entry: entry[0])
    off = large & padded
    if large[bare].mean() > 2 * FEW or off.sum() < LEAST_PADDED * padded.sum():
        return None
    if _chance(case, bare, off) > BY_CHANCE or np.median(rms[bare]) > ENGINE_NOISE:
        return None
    return Suspicion(
        confidence=LIKELY,
        message=f"In batches of {size} rows those with the longest prompt agree "
        f"({np.median(rms[bare]):.2g} nats rms), and {off.sum() / padded.sum():.0%} of the others, "
        f"which are padded, do not ({np.median(rms[off]):.2g}): padding is attended to, or counted "
        "in positions.",
        evidence=[
            fact(
                "rms log-ratio by padding",
                "rows without padding agree",
                unpadded=np.median(rms[bare]),
                padded=np.median(rms[padded]),
                batch_size=size,
            )
        ],
        share_of_rows=float(off.sum() / known.sum()),
        also_possible=["position-ids", "packing-leak", "context-differs"],
    )


CONTEXT: Sequence[Cause] = (
    shipped("context-stripped", "distribution", _context_stripped),
    shipped("prompt-truncated", "distribution", _prompt_truncated),
    shipped("attention-to-padding", "distribution", _padding_counts),
    shipped("context-differs", "difference", _context),
)
