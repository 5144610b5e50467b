"""Names the cause where weights of other checkpoints explain rows of a column."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.causes.cause import Suspicion
from rcdiag.diagnosis.experiments.hypothesis_tester import HypothesisTest, HypothesisTester
from rcdiag.diagnosis.experiments.patterns import pattern_of
from rcdiag.diagnosis.experiments.unlogged_sampling import make_suspicion
from rcdiag.diagnosis.experiments.weights_by_row import (
    DECISIVE,
    WeightsByRow,
    rows_of_changes,
)
from rcdiag.engines.changes import Moved
from rcdiag.formats import share_of

MOST_OF_STEP = 0.7  # share of a step's rows
SOME = 0.25  # share of such steps' rows that other weights must explain
MOST = 0.9  # share of rows that is all of them, but for chance


def cause_by_row(tester: HypothesisTester, test: HypothesisTest) -> tuple[str, Suspicion] | None:
    """Find the rows that other weights explain, where they explain the column as a whole better.

    That is also so if some rows, steps or ends of rows are of the trainer's weights.
    """
    if not isinstance(test.change, Moved) or tester.side.name != "sampler":
        return None
    weights = rows_of_changes(
        tester.sample, tester.side, tester.forward, {test.setting: test.change}
    )
    return cause_of_weights(tester, weights) or _never_synced(tester, weights)


def _never_synced(tester: HypothesisTester, weights: WeightsByRow) -> tuple[str, Suspicion] | None:
    """Name `weights-never-synced` if all rows from some step on, and none before, fit one
    checkpoint better than the trainer's weights.
    """
    own = weights.explained & (weights.best == 0)
    over_steps = _over_steps(tester, weights, own, (weights.best > 0) & ~own)
    if over_steps is None or over_steps[0] != "weights-never-synced":
        return None
    nearer = float((weights.best > 0).mean())
    return over_steps[0], make_suspicion(
        0.8,
        f"From step {over_steps[1]} on {tester.side.policy}_log_probs are nearer to "
        f"{weights.names[1]} than to the trainer's weights, and before it of the trainer's.",
        [
            {
                "name": "share of rows nearer to other weights",
                "value": nearer,
                "reads": "from one step on",
            }
        ],
        share_of_rows=nearer,
        from_step=over_steps[1],
    )


def cause_of_weights(
    tester: HypothesisTester, weights: WeightsByRow
) -> tuple[str, Suspicion] | None:
    """Name the cause where checkpoints explain the rows of a column."""
    explained, best = weights.explained, weights.best
    switched = weights.switch >= 0
    counts = {
        name: int((explained & ~switched & (best == index)).sum())
        for index, name in enumerate(weights.names)
    }
    counts |= {
        "both, one after the other": int(switched.sum()),
        "no checkpoint": int((~explained & ~switched).sum()),
    }
    evidence = [
        {
            "name": "rows by the weights that explain them",
            **{name: count for name, count in counts.items() if count},
            "reads": "by the likelihood of the recorded log-probs",
        }
    ]
    other = explained & (best > 0)
    own = explained & (best == 0)
    sampler = tester.side.name == "sampler"
    if sampler and switched.mean() > 0.15 and own.mean() + other.mean() + switched.mean() > 0.7:
        return "in-flight-update", make_suspicion(
            0.93,
            f"In {share_of(float(switched.mean()))} the first tokens are of other weights than the "
            "last ones.",
            evidence,
            share_of_rows=float(switched.mean()),
        )
    if sampler and weights.mixed > 0.3 and pattern_of(tester).recorded_excess < -4.0:
        return "draft-recorded", make_suspicion(
            0.75,
            f"In {share_of(weights.mixed)} some recorded log-probs are of other weights, "
            "token by token: those of a draft model.",
            evidence,
            side="recorder",
            share_of_rows=weights.mixed,
        )
    if (own | other).mean() < 0.8 or other.mean() < 0.02:
        return None
    # Short or near-certain rows fit both weights equally and do not count.
    informative = np.abs(weights.losses[0] - weights.losses[1:].min(axis=0)) > DECISIVE
    share = float((other & informative).sum() / max(((own | other) & informative).sum(), 1))
    names = ", ".join(weights.names[index] for index in np.unique(best[other]))
    known, rows = int((own | other).sum()), len(own)
    which = "" if known == rows else f" that a checkpoint explains ({known:,} of {rows:,})"
    message = (
        f"In {share_of(share)}{which} {tester.side.policy}_log_probs are those of {names}, not of "
        "the trainer's weights."
    )
    if not sampler:
        return "reference-as-old", make_suspicion(
            0.9, message, evidence, side="trainer", share_of_rows=share
        )
    over_steps = _over_steps(tester, weights, own, other)
    if over_steps is not None:
        slug, from_step = over_steps
        return slug, make_suspicion(
            0.92, message, evidence, share_of_rows=share, from_step=from_step
        )
    if share >= MOST:
        distribution = pattern_of(tester).recorded_excess
        if distribution < -4.0:
            return "draft-recorded", make_suspicion(
                0.85,
                f"{message} But the trainer's distribution sampled the tokens: other weights' "
                "log-probs were recorded for them.",
                evidence,
                side="recorder",
            )
        return "stale-weights", make_suspicion(0.95, message, evidence)
    return "replica-unsynced", make_suspicion(0.9, message, evidence, share_of_rows=share)


def _over_steps(
    tester: HypothesisTester, weights: WeightsByRow, own: np.ndarray, other: np.ndarray
) -> tuple[str, int | None] | None:
    """Tell a sampler that got stuck at one checkpoint from one that lags behind."""
    steps = tester.sample.case.facts.step
    if steps is None:
        return None
    step = steps[weights.rows]
    # Rows near the noise limit fit neither; what counts is that hardly any row of a step fits the
    # trainer's weights.
    rates = {int(one): 1.0 - float(own[step == one].mean()) for one in np.unique(step)}
    late = [one for one, rate in rates.items() if rate > MOST_OF_STEP]
    mixed = any(1.0 - MOST_OF_STEP < rate < MOST_OF_STEP for rate in rates.values())
    then = np.isin(step, late)
    if len(rates) < 2 or not late or mixed or not other[then].mean() > SOME:
        return None
    count = np.bincount(weights.best[other & then], minlength=len(weights.names))
    used = np.flatnonzero(count > 0.15 * count.sum())
    before = [one for one in rates if one not in late]
    if len(used) == 1 and all(one < min(late) for one in before) and (before or len(late) > 1):
        return "weights-never-synced", min(late)
    return "stale-weights", min(late) if before else None


def single_checkpoint(weights: WeightsByRow) -> str | None:
    """Return the checkpoint that explains nearly all rows, where it is not the model's."""
    other = weights.best[weights.explained & (weights.best > 0)]
    if len(other) < MOST * len(weights.rows):
        return None
    values, counts = np.unique(other, return_counts=True)
    if counts.max() < MOST * len(other):
        return None
    return weights.names[int(values[counts.argmax()])]
