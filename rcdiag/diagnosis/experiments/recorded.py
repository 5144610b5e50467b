"""Experiments on the recorded values: are they of other quantities, units, tokens or rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rcdiag.diagnosis.case import Counts
from rcdiag.diagnosis.causes.cause import EXCLUSIVE_STAGES
from rcdiag.diagnosis.experiments.hypothesis_tester import (
    HypothesisTest,
    HypothesisTester,
    experiment,
)
from rcdiag.diagnosis.experiments.sides import MODEL, as_table
from rcdiag.diagnosis.experiments.thresholds import GAIN
from rcdiag.diagnosis.experiments.trainer_distribution import log_sum, scaled
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.features.storage import LOG_BASES
from rcdiag.diagnosis.judge import suspicions
from rcdiag.diagnosis.thresholds import FEWEST, HALF, SLIGHT
from rcdiag.formats import share_of

A_FACTOR = 0.005  # relative difference up to which two factors count as equal


@experiment(
    slugs=("top-one-recorded", "entropy-recorded"),
)
def quantities(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try the likeliest token's log-prob and the entropy."""
    side, reading, at = tester.side, tester.sample.reading, tester.side.known_at
    if np.all(side.temperature[at] == 1.0):
        top, entropy = reading.top[at], reading.entropy[at]
    else:
        at = tester.distribution_at
        logits = scaled(tester.distribution.logits, tester.distribution_temperature)
        top = logits.max(axis=1) - log_sum(logits)
        entropy = tester.distribution.entropy(tester.distribution_temperature)
    yield tester.test("top-one-recorded", "log-prob of the likeliest token", top, at)
    yield tester.test("entropy-recorded", "entropy", entropy, at)
    yield tester.test("entropy-recorded", "minus the entropy", -entropy, at)


@experiment(
    slugs=(
        *("sign-flipped", "probabilities-stored", "cumulative-stored", "log-base"),
        *("sentinel", "floor-clip", "zero-placeholder", "rows-swapped"),
        *("shift-by-one", "shift-some-rows", "shift-after-tool"),
        *("eos-one-sided", "special-token-ids"),
    ),
)
def repairs(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try faults of storage and alignment: those of a table of the recorded column and the model's.

    A fault predicts that its repair makes the two columns equal. Tokens whose values the repair
    takes as missing count as explained, rows that it leaves out as unchanged.
    """
    side = tester.side
    at = tester.sample.tokens_of(tester.sample.rows)
    recorded, expected = side.recorded[at], side.expected[at]
    with np.errstate(all="ignore"):
        found = suspicions(Features(as_table(tester.sample, side)))
    for suspicion in found:
        repaired = suspicion.repaired
        if suspicion.cause.stage in EXCLUSIVE_STAGES or repaired is None:
            continue
        judged = np.bincount(repaired.owner[repaired.mask], minlength=len(repaired.lengths)) > 0
        inside, usable = judged[repaired.owner], repaired.mask & side.known[at]
        # A repair that leaves fewer tokens is not tested on them.
        if usable.sum() < max(HALF * (inside & side.known[at]).sum(), 1):
            continue
        distance = repaired.log_probs[side.policy] - repaired.log_probs[MODEL]
        left = np.where(inside, np.where(usable, distance, 0.0), recorded - expected)
        share = suspicion.share_of_rows * float(judged.mean())
        yield tester.test(
            suspicion.slug,
            f"{suspicion.slug} in {share_of(share)}",
            recorded - left,
            at,
            values={"share_of_rows": share},
        )


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
    if any(abs(factor * np.log(base) - 1.0) < A_FACTOR for base in LOG_BASES):
        return
    yield tester.test(
        "log-probs-divided",
        f"log-probs, not logits, divided by {1.0 / factor:.3g}",
        factor * expected,
        at,
        values={"temperature": 1.0 / factor},
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
