"""Experiments on the recorded values: are they of other quantities, units, tokens or rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rcdiag.diagnosis.case import Counts
from rcdiag.diagnosis.experiments.fit import residuals
from rcdiag.diagnosis.experiments.hypothesis_tester import (
    GAIN,
    HypothesisTest,
    HypothesisTester,
    experiment,
)
from rcdiag.diagnosis.experiments.thresholds import FEWEST_OF_ID, LATE, NOT_ROUNDING
from rcdiag.diagnosis.experiments.trainer_distribution import log_sum, scaled
from rcdiag.diagnosis.features.storage import LOG_BASES
from rcdiag.diagnosis.thresholds import FEWEST, LOST_IN_NOISE, SLIGHT
from rcdiag.formats import share_of

OFF = 12.0  # a token is not explained if its residual exceeds this many noise scales
# A factor counts as 1 within A_FACTOR, and as that of a base if factor * ln(base) - 1 is within
# A_BASE.
A_FACTOR, A_BASE = 0.005, 0.003
# At most MOST_WRONG ids are scored as others; each time the other id is searched on SEARCHED
# tokens.
MOST_WRONG, SEARCHED = 16, 400
FITS_BETTER = 2.0  # another row fits if its mean log distance is smaller by at least this


@experiment(
    slugs=(
        *("top-one-recorded", "entropy-recorded", "sign-flipped", "log-base"),
        *("probabilities-stored", "cumulative-stored"),
    ),
)
def quantities(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try the likeliest token's log-prob, the entropy, and other units of the expected column."""
    side, reading, at = tester.side, tester.sample.reading, tester.side.known_at
    expected, owner = side.expected[at], tester.sample.owner[at]
    if np.all(side.temperature[at] == 1.0):
        of_context = at
        top, entropy = reading.top[at], reading.entropy[at]
    else:
        of_context = tester.distribution_at
        logits = scaled(tester.distribution.logits, tester.distribution_temperature)
        top = logits.max(axis=1) - log_sum(logits)
        entropy = tester.distribution.entropy(tester.distribution_temperature)
    yield tester.test("top-one-recorded", "log-prob of the likeliest token", top, of_context)
    yield tester.test("entropy-recorded", "entropy", entropy, of_context)
    yield tester.test("entropy-recorded", "minus the entropy", -entropy, of_context)
    yield tester.test("sign-flipped", "minus the log-prob", -expected, at)
    for base in LOG_BASES:
        words = f"logarithm of base {base}"
        yield tester.test("log-base", words, expected / np.log(float(base)), at)
    yield tester.test("probabilities-stored", "the probability", np.exp(expected), at)
    _, first, row = np.unique(owner, return_index=True, return_inverse=True)
    sums = np.cumsum(expected)
    running = sums - (sums - expected)[first][row]
    yield tester.test("cumulative-stored", "running sums of the row", running, at)
    means = (np.bincount(row, expected) / np.bincount(row))[row]
    yield tester.test("cumulative-stored", "the row's mean", means, at)


@experiment(
    slugs=("log-probs-divided",),
)
def divided(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try log-probs that were divided by a temperature without normalising them again."""
    side = tester.side
    at = side.known_at
    expected = tester.sample.reading.log_prob[at]
    informative = np.abs(expected) > SLIGHT
    if informative.sum() < FEWEST:
        return
    factor = float(np.median(side.recorded[at][informative] / expected[informative]))
    if not np.isfinite(factor) or factor <= 0 or abs(factor - 1.0) < A_FACTOR:
        return
    if any(abs(factor * np.log(base) - 1.0) < A_BASE for base in LOG_BASES):
        return
    yield tester.test(
        "log-probs-divided",
        f"log-probs, not logits, divided by {1.0 / factor:.3g}",
        factor * expected,
        at,
        values={"temperature": 1.0 / factor},
    )


@experiment(
    slugs=("shift-by-one", "shift-some-rows"),
)
def shifts(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try the expected column of the neighbouring tokens, in all rows or in some."""
    side, sample = tester.side, tester.sample
    at = side.known_at
    count = len(sample)
    for lag, words in ((1, "one token to the left"), (-1, "one token to the right")):
        moved = np.arange(count) + lag
        inside = (moved >= 0) & (moved < count)
        inside[inside] = sample.owner[moved[inside]] == sample.owner[np.flatnonzero(inside)]
        shifted = side.expected.copy()
        shifted[inside] = side.expected[moved[inside]]
        # At the border of a row no neighbour exists: the recorded value counts as explained.
        shifted[~inside] = side.recorded[~inside]
        yield tester.test("shift-by-one", words, shifted[at], at)
        own = np.abs(residuals(side.recorded[at], side.expected[at]))
        other = np.abs(residuals(side.recorded[at], shifted[at]))
        rows = np.searchsorted(sample.rows, sample.owner[at])
        better = np.bincount(rows, np.log(own + 1e-4) - np.log(other + 1e-4)) > 0
        if better.any() and not better.all():
            mixed = np.where(better[rows], shifted[at], side.expected[at])
            yield tester.test(
                "shift-some-rows",
                f"{words} in {share_of(float(better.mean()))}",
                mixed,
                at,
                values={"share_of_rows": float(better.mean())},
            )


@experiment(
    slugs=("logits-not-shifted",),
    passes=lambda tester: 1.0,
)
def not_shifted(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try the logits that follow a token in place of those before it."""

    def attempt(rows: Counts) -> HypothesisTest:
        passages = [one for row in rows if len((one := tester.passage(int(row))).places) > 0]
        return tester.test(
            "logits-not-shifted",
            "log-prob under the logits that follow the token",
            tester.forward.after(passages),
            tester.sample.tokens_of([passage.row for passage in passages]),
        )

    test = attempt(tester.screen)
    yield attempt(tester.confirm) if test.gain > GAIN else test


@experiment(
    slugs=("special-token-ids", "eos-one-sided"),
)
def token_ids(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Find ids whose log-probs are those of another id: the end token, markers."""
    side, sample = tester.side, tester.sample
    at = side.known_at
    residual = np.abs(residuals(side.recorded[at], side.expected[at]))
    off = residual > OFF * (side.residual.scale * side.sensitivity[at] + NOT_ROUNDING)
    off &= (
        residual
        > OFF * tester.sample.noise * side.sensitivity[at] + side.resolution[at] + NOT_ROUNDING
    )
    ids, counts = np.unique(sample.token[at], return_counts=True)
    wrong = np.array([int((off & (sample.token[at] == one)).sum()) for one in ids])
    bad = ids[(wrong >= FEWEST_OF_ID) & (wrong >= 0.5 * counts)]
    if (
        not len(bad)
        or len(bad) > MOST_WRONG
        or (wrong.sum() - wrong[np.isin(ids, bad)].sum()) > wrong.sum() * 0.5
    ):
        return
    predicted = side.expected[at].copy()
    swaps = []
    for one in bad:
        here = np.flatnonzero(off & (sample.token[at] == one))[:SEARCHED]
        logits = sample.reading.logits_at(at[here])
        logits = scaled(logits, side.temperature[at[here]])
        log_probs = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1))[:, None]
        log_probs -= logits.max(1, keepdims=True)
        miss = np.median(np.abs(log_probs - side.recorded[at[here]][:, None]), axis=0)
        best = int(np.argmin(miss))
        if miss[best] < LOST_IN_NOISE + 2 * tester.sample.noise and best != one:
            predicted[here] = log_probs[:, best]
            swaps.append((int(one), best))
        elif np.ptp(side.recorded[at[here]]) == 0.0:
            predicted[here] = side.recorded[at[here]]
            swaps.append((int(one), -1))
    if swaps:
        ends = set(tester.forward.tensors.end_ids)
        one_sided = all(one in ends for one, _ in swaps)
        words = ", ".join(
            f"{one} scored as {other}" if other >= 0 else f"{one} has a constant"
            for one, other in swaps
        )
        yield tester.test(
            "eos-one-sided" if one_sided else "special-token-ids",
            f"token id {words}",
            predicted,
            at,
        )


@experiment(
    slugs=("rows-swapped",),
)
def other_rows(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try the expected column of other rows, matched by the values at their first tokens."""
    side, sample = tester.side, tester.sample
    rows = sample.rows
    known = side.known
    spans = [sample.tokens_of([int(row)]) for row in rows]
    head, expected = np.full((2, len(rows), LATE), np.nan)
    for index, span in enumerate(spans):
        part = span[:LATE]
        head[index, : len(part)] = np.where(known[part], side.recorded[part], np.nan)
        expected[index, : len(part)] = side.expected[part]
    bad = tester.row_loss > np.median(tester.row_loss) if len(rows) > 1 else np.zeros(1, np.bool_)
    seen = np.isfinite(head - expected).any(axis=1)
    bad[seen] |= np.nanmedian(np.abs(head - expected)[seen] + 1e-5, axis=1) > 0.01
    predicted = side.expected.copy()
    moved = 0
    for index in np.flatnonzero(bad):
        with np.errstate(all="ignore"):
            miss = np.nanmean(np.log(np.abs(expected - head[index]) + 1e-4), axis=1)
        miss[np.isnan(miss)] = np.inf
        best = int(np.argmin(miss))
        if best != index and miss[best] < miss[index] - FITS_BETTER:
            span, other = spans[index], spans[best]
            common = min(len(span), len(other))
            predicted[span[:common]] = side.expected[other[:common]]
            predicted[span[common:]] = side.recorded[span[common:]]
            moved += 1
    if moved >= 2:
        at = side.known_at
        yield tester.test(
            "rows-swapped",
            f"{moved} of {len(rows)} rows hold another row's values",
            predicted[at],
            at,
            values={"share_of_rows": moved / len(rows)},
        )
