"""Experiments on what was written down: other tokens, other quantities, other units, other rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rcdiag.diagnosis.estimates import share_of
from rcdiag.diagnosis.experiments.bench import GAIN, Array, Bench, Counts, Trial
from rcdiag.diagnosis.experiments.experiment import Experiment
from rcdiag.diagnosis.experiments.fit import residual
from rcdiag.diagnosis.experiments.trainer_law import log_sum, scaled

LN_2, LN_10 = float(np.log(2.0)), float(np.log(10.0))
OFF = 12.0  # noise scales from which on a token is not explained
SMALL = 0.05  # nats


def run_quantities(bench: Bench) -> Iterator[Trial]:
    """Try the likeliest token's log-prob, the entropy, and other units of the honest column."""
    side, reading = bench.side, bench.scene.reading
    at, honest = side.known_at, side.honest[side.known_at]
    owner = bench.scene.owner[at]
    at_one = np.all(side.temperature[at] == 1.0)
    top, entropy = reading.top[at], reading.entropy[at]
    if not at_one:
        at_law = bench.law_at
        law = bench.law
        top_law = -_entropy_and_top(bench)[0]
        yield bench.trial(
            "quantities", "top-one-recorded", "log-prob of the likeliest token", top_law, at_law
        )
        entropies = law.entropy(bench.law_temperature)
        for sign, words in ((1.0, "entropy"), (-1.0, "minus the entropy")):
            yield bench.trial("quantities", "entropy-recorded", words, sign * entropies, at_law)
    else:
        yield bench.trial(
            "quantities", "top-one-recorded", "log-prob of the likeliest token", top, at
        )
        for sign, words in ((1.0, "entropy"), (-1.0, "minus the entropy")):
            yield bench.trial("quantities", "entropy-recorded", words, sign * entropy, at)
    yield bench.trial("quantities", "sign-flipped", "minus the log-prob", -honest, at)
    for base, name in ((LN_2, "2"), (LN_10, "10")):
        yield bench.trial("quantities", "log-base", f"logarithm of base {name}", honest / base, at)
    yield bench.trial("quantities", "probabilities-stored", "the probability", np.exp(honest), at)
    sums = _running_sums(honest, owner)
    yield bench.trial("quantities", "cumulative-stored", "running sums of the row", sums, at)
    _, row = np.unique(owner, return_inverse=True)
    means = (np.bincount(row, honest) / np.bincount(row))[row]
    yield bench.trial("quantities", "cumulative-stored", "the row's mean", means, at)


def _entropy_and_top(bench: Bench) -> tuple[Array, Array]:
    """Return minus the top log-prob and the entropy at the side's temperature, [law tokens]."""
    logits = scaled(bench.law.logits, bench.law_temperature)
    return log_sum(logits) - logits.max(axis=1), bench.law.entropy(bench.law_temperature)


def _running_sums(values: Array, owner: Counts) -> Array:
    """Add values up from the beginning of each row."""
    sums = np.cumsum(values)
    first = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    before = sums[first] - values[first]
    return sums - np.repeat(before, np.diff(np.append(first, len(values))))


def run_divided(bench: Bench) -> Iterator[Trial]:
    """Try log-probs that were divided by a temperature, without normalising anew."""
    side = bench.side
    at = side.known_at
    honest = bench.scene.reading.log_prob[at]
    tells = np.abs(honest) > SMALL
    if tells.sum() < 20:
        return
    factor = float(np.median(side.recorded[at][tells] / honest[tells]))
    if not np.isfinite(factor) or factor <= 0 or abs(factor - 1.0) < 0.005:
        return
    if min(abs(factor * LN_2 - 1.0), abs(factor * LN_10 - 1.0)) < 0.003:
        return
    yield bench.trial(
        "divided",
        "log-probs-divided",
        f"log-probs, not logits, divided by {1.0 / factor:.3g}",
        factor * honest,
        at,
        values={"temperature": 1.0 / factor},
    )


def run_shifted(bench: Bench) -> Iterator[Trial]:
    """Try the honest column of a neighbouring token, in all rows, in some, or from a turn on."""
    side, scene = bench.side, bench.scene
    at = side.known_at
    count = len(scene)
    for lag, words in ((1, "one token to the left"), (-1, "one token to the right")):
        moved = np.arange(count) + lag
        inside = (moved >= 0) & (moved < count)
        inside[inside] = scene.owner[moved[inside]] == scene.owner[np.flatnonzero(inside)]
        shifted = side.honest.copy()
        shifted[inside] = side.honest[moved[inside]]
        # At the border of a row there is nothing to shift in: whatever stands there is taken.
        shifted[~inside] = side.recorded[~inside]
        yield bench.trial("shifts", "shift-by-one", words, shifted[at], at)
        own = np.abs(residual(side.recorded[at], side.honest[at]))
        other = np.abs(residual(side.recorded[at], shifted[at]))
        rows = np.searchsorted(scene.rows, scene.owner[at])
        better = np.bincount(rows, np.log(own + 1e-4) - np.log(other + 1e-4)) > 0
        if better.any() and not better.all():
            mixed = np.where(better[rows], shifted[at], side.honest[at])
            yield bench.trial(
                "shifts",
                "shift-some-rows",
                f"{words} in {share_of(float(better.mean()))}",
                mixed,
                at,
                values={"share_of_rows": float(better.mean())},
            )


def run_not_shifted(bench: Bench) -> Iterator[Trial]:
    """Try the logits that follow a token in place of those before it."""

    def attempt(rows: Counts) -> Trial:
        passages = [one for row in rows if len((one := bench.passage(int(row))).places) > 0]
        return bench.trial(
            "not-shifted",
            "logits-not-shifted",
            "log-prob under the logits that have read the token",
            bench.forward.after(passages),
            bench.scene.tokens_of([passage.row for passage in passages]),
        )

    trial = attempt(bench.screen)
    yield attempt(bench.confirm) if trial.gain > GAIN else trial


def run_ids(bench: Bench) -> Iterator[Trial]:
    """Find ids whose log-probs are those of another id: the end token, markers."""
    side, scene = bench.side, bench.scene
    at = side.known_at
    left = np.abs(residual(side.recorded[at], side.honest[at]))
    off = left > OFF * (side.left.scale * side.reach[at] + 1e-3)
    off &= left > OFF * bench.scene.noise * side.reach[at] + side.grain[at] + 1e-3
    ids, counts = np.unique(scene.token[at], return_counts=True)
    wrong = np.array([int((off & (scene.token[at] == one)).sum()) for one in ids])
    bad = ids[(wrong >= 3) & (wrong >= 0.5 * counts)]
    if (
        not len(bad)
        or len(bad) > 16
        or (wrong.sum() - wrong[np.isin(ids, bad)].sum()) > wrong.sum() * 0.5
    ):
        return
    predicted = side.honest[at].copy()
    swaps = []
    for one in bad:
        here = np.flatnonzero(off & (scene.token[at] == one))[:400]
        logits = scene.reading.logits_at(at[here])
        logits = scaled(logits, side.temperature[at[here]])
        log_probs = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1))[:, None]
        log_probs -= logits.max(1, keepdims=True)
        miss = np.median(np.abs(log_probs - side.recorded[at[here]][:, None]), axis=0)
        best = int(np.argmin(miss))
        if miss[best] < 0.02 + 2 * bench.scene.noise and best != one:
            predicted[here] = log_probs[:, best]
            swaps.append((int(one), best))
        elif np.ptp(side.recorded[at[here]]) == 0.0:
            predicted[here] = side.recorded[at[here]]
            swaps.append((int(one), -1))
    if swaps:
        ends = set(bench.forward.tensors.end_ids)
        one_sided = all(one in ends for one, _ in swaps)
        words = ", ".join(
            f"{one} scored as {other}" if other >= 0 else f"{one} has a constant"
            for one, other in swaps
        )
        yield bench.trial(
            "token-ids",
            "eos-one-sided" if one_sided else "special-token-ids",
            f"token id {words}",
            predicted,
            at,
        )


def run_rows(bench: Bench) -> Iterator[Trial]:
    """Try the honest column of other rows, matched by their first tokens."""
    side, scene = bench.side, bench.scene
    rows = scene.rows
    known = side.known
    spans = [scene.tokens_of([int(row)]) for row in rows]
    width = 24
    head = np.full((len(rows), width), np.nan)
    honest = np.full((len(rows), width), np.nan)
    for index, span in enumerate(spans):
        part = span[:width]
        head[index, : len(part)] = np.where(known[part], side.recorded[part], np.nan)
        honest[index, : len(part)] = side.honest[part]
    bad = bench.row_loss > np.median(bench.row_loss) if len(rows) > 1 else np.zeros(1, np.bool_)
    seen = np.isfinite(head - honest).any(axis=1)
    bad[seen] |= np.nanmedian(np.abs(head - honest)[seen] + 1e-5, axis=1) > 0.01
    predicted = side.honest.copy()
    moved = 0
    for index in np.flatnonzero(bad):
        with np.errstate(all="ignore"):
            miss = np.nanmean(np.log(np.abs(honest - head[index]) + 1e-4), axis=1)
        miss[np.isnan(miss)] = np.inf
        best = int(np.argmin(miss))
        if best != index and miss[best] < miss[index] - 2.0:
            span, other = spans[index], spans[best]
            common = min(len(span), len(other))
            predicted[span[:common]] = side.honest[other[:common]]
            predicted[span[common:]] = side.recorded[span[common:]]
            moved += 1
    if moved >= 2:
        at = side.known_at
        yield bench.trial(
            "other-rows",
            "rows-swapped",
            f"{moved} of {len(rows)} rows hold another row's values",
            predicted[at],
            at,
            values={"share_of_rows": moved / len(rows)},
        )


QUANTITIES = Experiment(
    name="quantities",
    slugs=(
        *("top-one-recorded", "entropy-recorded", "sign-flipped", "log-base"),
        *("probabilities-stored", "cumulative-stored"),
    ),
    asks="Was another quantity recorded, or in another unit?",
    run=run_quantities,
)
DIVIDED = Experiment(
    name="divided",
    slugs=("log-probs-divided",),
    asks="Were log-probs, not logits, divided by a temperature?",
    run=run_divided,
)
SHIFTS = Experiment(
    name="shifts",
    slugs=("shift-by-one", "shift-some-rows"),
    asks="Does the column belong to a neighbouring token?",
    run=run_shifted,
)
NOT_SHIFTED = Experiment(
    name="not-shifted",
    slugs=("logits-not-shifted",),
    asks="Are tokens scored by the logits that have read them?",
    run=run_not_shifted,
    passes=lambda bench: 1.0,
)
TOKEN_IDS = Experiment(
    name="token-ids",
    slugs=("special-token-ids", "eos-one-sided"),
    asks="Are few token ids scored as other ids?",
    run=run_ids,
)
OTHER_ROWS = Experiment(
    name="other-rows",
    slugs=("rows-swapped",),
    asks="Does the column belong to other rows?",
    run=run_rows,
)
