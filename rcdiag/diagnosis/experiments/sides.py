"""Compares each side's column with the model's, at the best-fitting temperature."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Array, Case, Counts, Flags, spread_over
from rcdiag.diagnosis.experiment_fit import ExperimentFit
from rcdiag.diagnosis.experiments.fit import FLOAT32, Residual, fit_residual, searched
from rcdiag.diagnosis.experiments.rescored_sample import RescoredSample, Side
from rcdiag.diagnosis.experiments.rounding import LIGHTEST, by_token
from rcdiag.diagnosis.experiments.thresholds import (
    FAR_OFF,
    FEW_OFF,
    LEAST_GAIN,
    OUTLYING,
    SCANNED,
    SLIGHT_GAIN,
)
from rcdiag.diagnosis.features.storage import StoredColumn
from rcdiag.diagnosis.thresholds import FEWEST

TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.8, 2.2, 3.0)
EXACT = 3e-5  # scale of the noise of two float32 passes
MODEL = "checkpoint"  # the name of the model's column in a table of it and a recorded one


def side_of(sample: RescoredSample, name: str, policy: str) -> Side:
    """Compare a policy's column with the model at the temperature that fits: 1, stated, or best."""
    made = side_at(sample, name, policy, np.ones(len(sample)))
    stated = sample.stated_temperature
    if np.any(stated != 1.0):
        other = side_at(sample, name, policy, stated)
        if other.residual.nats < made.residual.nats - LEAST_GAIN:
            made = other
    if made.explained:
        return made
    temperature = scanned_temperature(sample, made)
    if temperature is None:
        return made
    other = side_at(sample, name, policy, np.full(len(sample), temperature))
    return other if other.residual.within(sample.noise) else made


def side_at(sample: RescoredSample, name: str, policy: str, temperature: Array) -> Side:
    """Compare a policy's column with the model at given temperatures, [tokens]."""
    recorded = sample.recorded(policy)
    known = sample.usable & np.isfinite(recorded)
    expected = sample.expected_at(temperature)
    # Logit noise is divided by the temperature, as the logits are.
    sensitivity = sample.sensitivity_at(expected) / temperature
    resolution = _resolution(sample, recorded, known)
    residual = fit_residual(recorded[known], expected[known], sensitivity[known], resolution[known])
    # With such a tail, rounding does not explain the column of a trainer's dense model.
    uneven = (
        name == "trainer"
        and not sample.experts
        and residual.scale > EXACT
        and residual.tail > OUTLYING
    )
    return Side(
        name=name,
        policy=policy,
        recorded=recorded,
        known=known,
        temperature=temperature,
        expected=expected,
        sensitivity=sensitivity,
        resolution=resolution,
        residual=residual,
        explained=(
            residual.scale <= sample.noise
            and residual.within(sample.noise)
            and residual.outlying(sample.noise, FAR_OFF) < FEW_OFF
            and residual.is_small(sample.noise, FAR_OFF)
            and not uneven
        ),
    )


def as_table(sample: RescoredSample, side: Side) -> Case:
    """Return a recorded column and the model's as a table of two policies, on the sample's rows."""
    case, at = sample.case, sample.tokens_of(sample.rows)
    columns = {side.policy: side.recorded[at], MODEL: side.expected[at]}
    sampler, trainer = columns if side.name == "sampler" else reversed(columns)
    rows = np.isin(np.arange(len(case.lengths)), sample.rows)
    return replace(case.take(rows), sampler=sampler, trainer=trainer, log_probs=columns, entropy={})


def _resolution(sample: RescoredSample, recorded: Array, known: Flags) -> Array:
    """Return the resolution of a column's storage, half a step of its grid, [tokens] nats."""
    others = np.full(int(known.sum()), np.nan)
    column = StoredColumn(values=recorded[known], other=others, row_of=sample.owner[known])
    if column.grid is None:
        return np.full(len(sample), FLOAT32)
    return FLOAT32 + column.grid.step(recorded) / 2.0


def scanned_temperature(sample: RescoredSample, side: Side) -> float | None:
    """Find a temperature that explains a column significantly better than `side`; None without."""
    chosen = np.flatnonzero(side.known[sample.distribution_at])
    if len(chosen) < FEWEST:
        return None
    few = chosen[spread_over(len(chosen), SCANNED)]
    distribution, at = sample.distribution.take(few), sample.distribution_at[few]

    def loss(expected: Array) -> float:
        noise_gain, resolution = sample.reading.noise_gain[at], side.resolution[at]
        return fit_residual(side.recorded[at], expected, noise_gain, resolution).nats

    log_temperature, least = searched(
        lambda log_t: loss(distribution.log_prob_at(float(np.exp(log_t)))),
        np.log(TEMPERATURES).tolist(),
    )
    return float(np.exp(log_temperature)) if least < loss(side.expected[at]) - SLIGHT_GAIN else None


def fit_of_side(
    sample: RescoredSample, side: Side, kind: str, *, explained: float, **more: float
) -> ExperimentFit:
    """Return the evidence of a conclusion about a column, given the unchanged model's residual."""
    return fit_of_residual(sample, side.residual, side.known_at, kind, explained=explained, **more)


def fit_of_residual(
    sample: RescoredSample,
    residual: Residual,
    at: Counts,
    kind: str,
    *,
    explained: float,
    **more: float,
) -> ExperimentFit:
    """Return the evidence of a conclusion, given the residual at tokens `at` of the sample.

    `more` are z, lead and not_run of `ExperimentFit`.
    """
    own, rounding = by_token(residual, sample.token[at], sample.owner[at]), sample.rounding
    return ExperimentFit(
        kind=kind,
        explained=float(np.clip(explained, 0.0, 1.0)),
        scale=residual.scale / sample.noise,
        tail=residual.tail / max(rounding.tail, LIGHTEST),
        by_token=0.0 if own is None else max(own - (rounding.by_token or 0.0), 0.0),
        tokens=len(at),
        rows=len(np.unique(sample.owner[at])),
        **more,
    )
