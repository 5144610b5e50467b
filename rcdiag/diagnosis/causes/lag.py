"""The sampler's weights lag: by version, over the steps, on one engine, within responses."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rcdiag.diagnosis.case import Array, Case, rms
from rcdiag.diagnosis.causes.cause import (
    CLEAR,
    EXACT,
    GUESS,
    LIKELY,
    WEAK,
    Suspicion,
    fact,
    shipped,
)
from rcdiag.diagnosis.causes.noise import is_engine_noise
from rcdiag.diagnosis.features import ENGINE_NOISE, Features, LogRatios
from rcdiag.diagnosis.features.location import MismatchByGroup, Onset
from rcdiag.diagnosis.thresholds import (
    FEW,
    FEWEST,
    FEWEST_OF_PATTERN,
    LARGER,
    MOST,
    MUCH_LARGER,
    ONE_SIDED,
    RELATED,
    SAME,
    SURELY,
    TINY,
)
from rcdiag.diagnosis.validity import INVALID
from rcdiag.formats import rough, share_of

# After a drift of weights, token ids explain more than EXPLAINED of the variance of log-ratios,
# whose rms is below LARGEST_DRIFT, nats.
EXPLAINED, LARGEST_DRIFT = 0.08, 0.5


def lags(case: Case) -> Array | None:
    """Return step minus policy_version, as the mean over each row's tokens; None where unknown.

    Trainers count versions from different origins: only differences between lags are evidence.
    """
    version, step = case.facts.policy_version, case.facts.step
    if version is None or step is None:
        return None
    if not case.facts.version_by_token:
        return (step - version).astype(np.float64)
    lag = (step[case.owner] - version).astype(np.float64)
    values: Array = np.bincount(case.owner, lag, len(step)) / np.maximum(case.lengths, 1)
    return values


def lagging(features: Features) -> Suspicion | None:
    """Look for log-ratios that grow with the lag of the weights that sampled a row."""
    lag = lags(features.case)
    if lag is None or features.declared.weights_agree or features.validity.answer == INVALID:
        return None
    known = features.case.tokens.per_row > 0
    behind = lag[known]
    least, most = float(behind.min()), float(behind.max())
    if least == most:
        return _all_behind(features, least, most, lag[~known])
    step = features.case.facts.step
    assert step is not None
    steps = step[known].astype(np.float64)
    growth, z = _growth(features.location.rms_of_rows[known], behind, steps)
    if z < SURELY or growth < LARGER:
        return _all_behind(features, least, most, lag[~known])
    older = behind > least
    return Suspicion(
        confidence=CLEAR,
        message="The sampler's weights are behind the trainer's: log-ratios grow with the age of "
        f"the weights that sampled (step less policy_version), {growth:.2g} times over "
        f"{rough(most - least)} updates.",
        evidence=[
            fact("rms log-ratio by age", "grows with the age", **_rms_by_age(features.case), z=z)
        ],
        share_of_rows=float(older.mean()),
        also_possible=["weights-never-synced", "in-flight-update"],
    )


def _rms_by_age(case: Case) -> dict[str, float]:
    """Return the rms log-ratio, nats, of the tokens of each age, the youngest first.

    Versions may be counted from another origin than steps: only differences of ages are known.
    """
    version, step = case.facts.policy_version, case.facts.step
    assert version is not None
    assert step is not None
    tokens = case.tokens
    of_token = version[tokens.place if case.facts.version_by_token else tokens.owner]
    age = step[tokens.owner] - of_token
    return {
        f"{value - age.min():+d} updates": round(rms(tokens.log_ratio[age == value]), 4)
        for value in np.unique(age)[:8]
    }


def _growth(rms: Array, lag: Array, step: Array) -> tuple[float, float]:
    """Return the growth factor of the rows' rms over the range of lags, and the z of the slope.

    Least squares of log rms on lag and step with heteroscedasticity-robust errors; the logarithm
    limits the influence of a few large rows. A mismatch that moves with the step alone is not one
    of the lag. Where lag and step cannot be separated, the lag counts if it can be one: 0 or more.
    (1, 0) if fewer than two lags have enough rows.
    """
    counts = np.unique(lag, return_counts=True)[1]
    if (counts >= FEWEST_OF_PATTERN).sum() < 2:
        return 1.0, 0.0
    size = np.log(np.maximum(rms, 1e-6))
    centred, rest = _without_trend(lag, step), _without_trend(size, step)
    if centred @ centred < FEW * np.var(lag) * len(lag):
        if lag.min() < 0.0:
            return 1.0, 0.0
        centred, rest = lag - lag.mean(), size - size.mean()
    slope = float(centred @ rest / (centred @ centred))
    residual = rest - slope * centred
    error = float(np.sqrt(np.sum((centred * residual) ** 2)) / (centred @ centred))
    growth = float(np.exp(np.clip(slope * (lag.max() - lag.min()), -50.0, 50.0)))
    return growth, slope / max(error, TINY)


def _without_trend(values: Array, step: Array) -> Array:
    """Return what a linear trend over the steps leaves of values; all [rows]."""
    centred, steps = values - values.mean(), step - step.mean()
    left: Array = centred - steps * (steps @ centred) / max(float(steps @ steps), TINY)
    return left


def _all_behind(features: Features, least: float, most: float, before: Array) -> Suspicion | None:
    """Weigh weights that lag in all rows, where the mismatch does not show how much.

    Where the mismatch began at a step, the lags `before` that step show whether it began with the
    lag. Otherwise no rows have current weights to compare with: a lag of one may be another way to
    count versions (`one_behind`), and for a larger one the evidence is a mismatch above rounding
    that has no other structure. Where lags differ, it must depend on the token id.
    """
    log_ratios = features.log_ratios
    since = features.onset is not None and len(before) > 0 and float(before.max()) < least
    if (
        least < 1
        or (most <= 1 and not since)
        or (least < most and not looks_like_other_weights(log_ratios))
        or is_engine_noise(features)
        or log_ratios.first_tokens > MUCH_LARGER
    ):
        return None
    updates = "update" if most == 1 else "updates"
    behind = f"{least:g}" if least == most else f"{least:g} to {most:g}"
    where = "in every row from there on, and less before" if since else "in every row"
    return Suspicion(
        confidence=CLEAR if since or looks_like_other_weights(log_ratios) else WEAK,
        message=f"By `policy_version` and `step` the sampler's weights are {behind} {updates} "
        f"behind {where}; the two sides differ by {log_ratios.rms:.2g} nats rms.",
        evidence=[
            fact("step less policy_version", "weights of earlier steps", least=least, most=most),
            features.validity.evidence,
        ],
        also_possible=["weights-differ", "weights-never-synced", "forwards-differ"],
    )


def one_behind(features: Features) -> str:
    """Say that versions are one behind the step in every row; empty where they are not.

    No row with another lag shows whether that is an older version or another origin of the count.
    """
    lag = lags(features.case)
    if lag is None or features.onset is not None or features.declared.weights_agree:
        return ""
    if not np.all(lag[features.case.tokens.per_row > 0] == 1.0):
        return ""
    return (
        " By `policy_version` every row's weights are 1 step behind, or versions count from "
        "another origin."
    )


def looks_like_other_weights(log_ratios: LogRatios) -> bool:
    """Tell whether log-ratios depend on the token id, as after a drift of weights."""
    seen = log_ratios.by_token_id
    return (
        seen.correlation > SAME
        and seen.beyond_chance
        and seen.explained > EXPLAINED
        and log_ratios.rms < LARGEST_DRIFT
        and log_ratios.first_tokens < MUCH_LARGER
    )


class _Growth(NamedTuple):
    """A mismatch that grows over the steps: its sizes, what it was before, and how it grows."""

    parts: MismatchByGroup  # by step
    before: str  # "0.01 nats rms at step 3"
    steadily: bool


def _never_synced(features: Features) -> Suspicion | None:
    """Detect a mismatch that grows over the steps: the sampler may keep its first weights."""
    log_ratios = features.log_ratios
    if (
        log_ratios.one_sided > ONE_SIDED
        or features.validity.answer == INVALID
        or features.location.resets  # a mismatch of weights never synced does not fall back
        or features.declared.learning_rate == 0.0  # without updates no weights lag
    ):
        return None
    directed = log_ratios.by_token_id.correlation > RELATED
    growth = _over_all_steps(features.location.by_step)
    if features.onset is not None:
        growth = _from_onset(features.onset, directed)
    if growth is None:
        return None
    parts, before, steadily = growth
    return Suspicion(
        confidence=LIKELY if steadily and directed else WEAK if directed or steadily else GUESS,
        message=f"The mismatch grows from {before} to {parts.rms[-1]:.2g} at step "
        f"{parts.labels[-1]}: the sampler keeps the weights of an earlier step.",
        evidence=[
            fact(
                "rms log-ratio by step",
                "grows",
                **{
                    f"step_{step}": float(f"{rms:.2g}")
                    for step, rms in list(zip(parts.labels, parts.rms, strict=True))[-12:]
                },
            ),
            features.validity.evidence,
        ],
        also_possible=["stale-weights", "weights-differ"],
    )


def _from_onset(onset: Onset, directed: bool) -> _Growth | None:
    """Return the growth of a mismatch from the step at which it began.

    A single step shows no growth: after few synced ones it counts if log-ratios are `directed`,
    that is, shifts by token id, which are of weights.
    """
    parts, later = onset.steps, onset.steps.rms[onset.first :]
    alone = onset.first < FEWEST_OF_PATTERN and directed
    if not (later[-1] > LARGER * later[0] if len(later) > 1 else alone):
        return None
    usual = float(np.median(parts.rms[: onset.first]))
    steadily = len(later) >= FEWEST_OF_PATTERN and float(np.mean(np.diff(later) > 0)) >= MOST
    return _Growth(parts, f"{usual:.2g} nats rms, the median before step {onset.step},", steadily)


def _over_all_steps(parts: MismatchByGroup | None) -> _Growth | None:
    """Return the growth of a mismatch that rises in most steps, by many times in all."""
    if parts is None or len(parts.labels) < FEWEST_OF_PATTERN or parts.rms[-1] <= 2 * ENGINE_NOISE:
        return None
    rising = float(np.mean(np.diff(parts.rms) > 0)) >= MOST
    if not (rising and parts.rms[-1] > MUCH_LARGER * parts.rms[0]):
        return None
    return _Growth(parts, f"{parts.rms[0]:.2g} nats rms at step {parts.labels[0]}", steadily=True)


def _replica(features: Features) -> Suspicion | None:
    parts, outliers = features.location.by_engine, features.location.outlier_rows
    if (
        parts is None
        or outliers is None
        or not outliers.engines
        or Features(features.case.take(outliers.rows)).validity.answer == INVALID
    ):
        return None
    return Suspicion(
        confidence=EXACT,
        message=f"Rows of {outliers.which} differ by "
        f"{outliers.rms:.2g} nats rms, those of the others by {outliers.rms_of_others:.2g}: that "
        "replica has other weights.",
        evidence=[
            fact(
                "rms log-ratio by engine",
                "one engine differs",
                **dict(zip(parts.labels, np.round(parts.rms, 5).tolist(), strict=True)),
            )
        ],
        share_of_rows=float(outliers.rows.mean()),
        also_possible=["stale-weights", "weights-differ"],
    )


def _in_flight(features: Features) -> Suspicion | None:
    """Look for rows whose tokens were sampled by several versions of the weights."""
    facts, log_ratios = features.case.facts, features.log_ratios
    if not facts.version_by_token or facts.policy_version is None or log_ratios.rms < ENGINE_NOISE:
        return None
    tokens = features.case.tokens
    version = facts.policy_version[tokens.place]
    same_row = np.diff(tokens.owner, prepend=-1) == 0
    changes = same_row & (np.diff(version, prepend=version[:1]) != 0)
    if len(np.unique(tokens.owner[changes])) < FEWEST_OF_PATTERN:
        return None
    # Rows that ended before the weights changed are of older versions as well.
    step = np.zeros(tokens.rows, np.int64) if facts.step is None else facts.step
    _, part = np.unique(step[tokens.owner], return_inverse=True)
    newest = np.full(int(part.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(newest, part, version)
    old = version < newest[part]
    if min(old.sum(), (~old).sum()) < FEWEST:
        return None
    before, after = rms(log_ratios.values[old]), rms(log_ratios.values[~old])
    rows = len(np.unique(tokens.owner[old])) / max(int((tokens.per_row > 0).sum()), 1)
    if before < LARGER * after and after < LARGER * before:
        return None
    return Suspicion(
        confidence=CLEAR,
        message=f"In {share_of(rows)} the weights changed during sampling: tokens of "
        f"older versions differ by {before:.2g} nats rms, the others by {after:.2g}.",
        evidence=[
            fact(
                "rms log-ratio by version within rows",
                "changes with the version",
                older=before,
                newest=after,
            )
        ],
        share_of_rows=rows,
        also_possible=["stale-weights"],
    )


LAGS = (
    shipped("replica-unsynced", "difference", _replica),
    shipped("in-flight-update", "difference", _in_flight),
    shipped("weights-never-synced", "difference", _never_synced),
)
