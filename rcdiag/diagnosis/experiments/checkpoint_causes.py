"""Names the cause where the weights of other checkpoints explain rows of a column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rcdiag.diagnosis.causes.cause import Suspicion, fact
from rcdiag.diagnosis.experiment_fit import NO_RIVAL, ExperimentFit
from rcdiag.diagnosis.experiments.hypothesis_tester import HypothesisTest, HypothesisTester
from rcdiag.diagnosis.experiments.patterns import recorded_excess
from rcdiag.diagnosis.experiments.sides import fit_of_side
from rcdiag.diagnosis.experiments.unlogged_sampling import make_suspicion
from rcdiag.diagnosis.experiments.weights_by_row import WeightsByRow, weights_by_row
from rcdiag.diagnosis.thresholds import DECISIVE, FEW, MOST, NEARLY_ALL, PART, SURELY
from rcdiag.engines.changes import Moved
from rcdiag.formats import share_of


def cause_by_row(tester: HypothesisTester, test: HypothesisTest) -> Suspicion | None:
    """Find which rows other weights explain, given that they explain the whole column better.

    They may do so although some rows, steps or ends of rows are of the trainer's weights.
    """
    if not isinstance(test.change, Moved) or tester.side.name != "sampler":
        return None
    weights = weights_by_row(
        tester.sample, tester.side, tester.forward, {test.setting: test.change}
    )
    return cause_of_weights(tester, weights) or _never_synced(tester, weights)


def _never_synced(tester: HypothesisTester, weights: WeightsByRow) -> Suspicion | None:
    """Name `weights-never-synced` if the rows from some step on fit one other checkpoint.

    All of them must fit it better than the trainer's weights, and no row before that step.
    """
    own = weights.explained & (weights.best == 0)
    over_steps = _over_steps(tester, weights, own, (weights.best > 0) & ~own)
    if over_steps is None or over_steps[0] != "weights-never-synced":
        return None
    nearer = float((weights.best > 0).mean())
    message = (
        f"From step {over_steps[1]} on {tester.side.policy}_log_probs are nearer to those of "
        f"{weights.names[1]} than to those of the trainer's weights; before, they are of the "
        "trainer's weights."
    )
    evidence = fact("share of rows nearer to other weights", "from one step on", value=nearer)
    return make_suspicion(
        over_steps[0],
        _fit(tester, weights),
        message,
        [evidence],
        share_of_rows=nearer,
        from_step=over_steps[1],
    )


def cause_of_weights(tester: HypothesisTester, weights: WeightsByRow) -> Suspicion | None:
    """Name the cause where checkpoints explain the rows of a column."""
    evidence = _counted(weights)
    sampler = tester.side.name == "sampler"
    if sampler and (named := _within_rows(tester, weights, evidence)) is not None:
        return named
    other = weights.explained & (weights.best > 0)
    own = weights.explained & (weights.best == 0)
    if (own | other).mean() < MOST or other.mean() < FEW:
        return None
    # Short or near-certain rows fit both weights equally and do not count.
    informative = np.abs(weights.losses[0] - weights.losses[1:].min(axis=0)) > DECISIVE
    share = float((other & informative).sum() / max(((own | other) & informative).sum(), 1))
    message = _whose_weights(tester, weights, own, other, share)
    fit = _fit(tester, weights)
    if not sampler:
        return make_suspicion(
            "reference-as-old", fit, message, [evidence], side="trainer", share_of_rows=share
        )
    over_steps = _over_steps(tester, weights, own, other)
    if over_steps is not None:
        slug, from_step = over_steps
        return make_suspicion(
            slug, fit, message, [evidence], share_of_rows=share, from_step=from_step
        )
    if share < NEARLY_ALL:
        return make_suspicion("replica-unsynced", fit, message, [evidence], share_of_rows=share)
    if recorded_excess(tester) < -SURELY:
        message += (
            " But the trainer's distribution sampled the tokens, so log-probs of other weights "
            "were recorded for them."
        )
        return make_suspicion("draft-recorded", fit, message, [evidence], side="recorder")
    return make_suspicion("stale-weights", fit, message, [evidence])


def _counted(weights: WeightsByRow) -> dict[str, Any]:
    """Return the number of rows that each checkpoint explains, as evidence."""
    switched = weights.switch >= 0
    counts = {
        name: int((weights.explained & ~switched & (weights.best == index)).sum())
        for index, name in enumerate(weights.names)
    }
    counts |= {
        "both, one after the other": int(switched.sum()),
        "no checkpoint": int((~weights.explained & ~switched).sum()),
    }
    return fact(
        "rows by the weights that explain them",
        "by the likelihood of the recorded log-probs",
        **{name: count for name, count in counts.items() if count},
    )


def _within_rows(
    tester: HypothesisTester, weights: WeightsByRow, evidence: Mapping[str, Any]
) -> Suspicion | None:
    """Name the cause where rows have log-probs of several weights: in sequence, or mixed."""
    switched = float((weights.switch >= 0).mean())
    if switched > PART and weights.explained.mean() + switched > MOST:
        message = (
            f"In {share_of(switched)} the first tokens were scored with other weights than the "
            "last ones."
        )
        return make_suspicion(
            "in-flight-update",
            _fit(tester, weights),
            message,
            [dict(evidence)],
            share_of_rows=switched,
        )
    if weights.mixed > PART and recorded_excess(tester) < -SURELY:
        message = (
            f"In {share_of(weights.mixed)} the recorded log-probs of single tokens are of other "
            "weights: those of a draft model."
        )
        return make_suspicion(
            "draft-recorded",
            _fit(tester, weights, weights.mixed),
            message,
            [dict(evidence)],
            side="recorder",
            share_of_rows=weights.mixed,
        )
    return None


def _whose_weights(
    tester: HypothesisTester,
    weights: WeightsByRow,
    own: np.ndarray,
    other: np.ndarray,
    share: float,
) -> str:
    """Say which weights made a column, in which share of the rows."""
    names = ", ".join(weights.names[index] for index in np.unique(weights.best[other]))
    known, rows = int((own | other).sum()), len(own)
    what = "tested" if known == rows else f"that a checkpoint explains (of {rows:,} tested)"
    return (
        f"In {share_of(share, f'{known:,} rows {what}')} {tester.side.policy}_log_probs are those "
        f"of {names}, not of the trainer's weights."
    )


def _fit(tester: HypothesisTester, weights: WeightsByRow, mixed: float = 0.0) -> ExperimentFit:
    """Return the evidence for the named weights.

    `explained` is the share of rows that they explain, z their gain in likelihood over the
    trainer's own weights, lead the median gain of a row over the next best checkpoint.
    """
    explained = weights.explained | (weights.switch >= 0)
    gain = np.maximum(weights.losses[0] - weights.by_token, 0.0)
    ahead = np.sort(weights.losses, axis=0)
    lead = float(np.median(ahead[1] - ahead[0])) if len(ahead) > 1 else NO_RIVAL
    return fit_of_side(
        tester.sample,
        tester.side,
        "weights",
        explained=max(float(explained.mean()), mixed),
        z=float(np.sqrt(2.0 * gain.sum())),
        lead=float(np.sqrt(2.0 * lead)),
    )


def _over_steps(
    tester: HypothesisTester, weights: WeightsByRow, own: np.ndarray, other: np.ndarray
) -> tuple[str, int | None] | None:
    """Return the cause by steps: a sampler that keeps one checkpoint, or one that lags behind.

    With it comes the first affected step; None as a whole where steps show neither.
    """
    steps = tester.sample.case.facts.step
    if steps is None:
        return None
    step = steps[weights.rows]
    # Rows near the noise limit fit no checkpoint; so a step counts if hardly any of its rows fits
    # the trainer's weights.
    rates = {int(one): 1.0 - float(own[step == one].mean()) for one in np.unique(step)}
    late = [one for one, rate in rates.items() if rate > MOST]
    mixed = any(PART < rate < MOST for rate in rates.values())
    then = np.isin(step, late)
    if len(rates) < 2 or not late or mixed or not other[then].mean() > PART:
        return None
    count = np.bincount(weights.best[other & then], minlength=len(weights.names))
    used = np.flatnonzero(count > PART * count.sum())
    before = [one for one in rates if one not in late]
    if len(used) == 1 and all(one < min(late) for one in before) and (before or len(late) > 1):
        return "weights-never-synced", min(late)
    return "stale-weights", min(late) if before else None


def single_checkpoint(weights: WeightsByRow) -> str | None:
    """Return the checkpoint that explains nearly all rows; None if that is the model's own."""
    other = weights.best[weights.explained & (weights.best > 0)]
    if len(other) < MOST * len(weights.rows):
        return None
    values, counts = np.unique(other, return_counts=True)
    if counts.max() < NEARLY_ALL * len(other):
        return None
    return weights.names[int(values[counts.argmax()])]
