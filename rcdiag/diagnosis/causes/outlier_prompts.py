"""The same prompts are outliers at every step: a mismatch that depends on the prompt."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Array, Case, Counts
from rcdiag.diagnosis.causes.cause import LIKELY, Suspicion, fact, shipped
from rcdiag.diagnosis.features import Features
from rcdiag.diagnosis.features.location import SMALLEST, OutlierRows
from rcdiag.diagnosis.thresholds import FEWEST_OF_PATTERN, FEWEST_ROWS, HALF, LARGER
from rcdiag.formats import share_of


class IntraclassCorrelation(Struct, frozen=True):
    """The share of a variance that is between prompts, with a 95% interval."""

    value: float
    low: float
    high: float
    prompts: int  # number of prompts that occur at two steps or more


def intraclass_correlation(values: Array, prompt: Counts) -> IntraclassCorrelation | None:
    """Return ICC = between / (between + within) of `values` [n] by `prompt` [n], numbered from 0.

    One-way analysis of variance with random effects: between = (MSB - MSW) / n0, within = MSW,
    where n0 is the mean number of values of a prompt, less for unequal numbers; the interval is
    that of the ratio MSB / MSW, which is F-distributed (Searle, Variance Components, 1992,
    sections 3.5 and 3.6). None where too few prompts have two values.
    """
    from scipy.special import fdtri

    count = np.bincount(prompt)
    again = count >= 2
    if again.sum() < FEWEST_ROWS:
        return None
    usable = again[prompt]
    _, prompt = np.unique(prompt[usable], return_inverse=True)
    values, count = values[usable], count[again].astype(np.float64)
    total, prompts = float(count.sum()), len(count)
    mean = np.bincount(prompt, values) / count
    freedom = prompts - 1, total - prompts
    between = float(np.sum(count * (mean - values.mean()) ** 2)) / freedom[0]
    within = float(np.sum((values - mean[prompt]) ** 2)) / freedom[1]
    if within <= 0.0:
        return None
    size = (total - float(np.sum(count**2)) / total) / freedom[0]

    def share(ratio: float) -> float:
        return (ratio - 1.0) / (ratio + size - 1.0)

    ratio = between / within
    low = share(ratio / float(fdtri(*freedom, 0.975)))
    return IntraclassCorrelation(
        share(ratio), low, share(ratio * float(fdtri(*freedom[::-1], 0.975))), prompts
    )


def _prompt(case: Case) -> NDArray[np.uint64] | None:
    """Return what identifies each row's prompt, [rows]: a hash of its tokens, or of `group_id`."""
    return case.facts.group if case.facts.prompt is None else case.facts.prompt


def _by_prompt_and_step(case: Case, values: Array) -> tuple[Array, Counts] | None:
    """Return the mean of `values` [rows] for each prompt and step, and the prompt's index.

    The mean of each step is subtracted. Rows of one prompt at one step are averaged: they share a
    batch, an engine and a prefix, so that their similarity says nothing about other steps.
    """
    key = _prompt(case)
    if key is None or case.facts.step is None:
        return None
    known = np.isfinite(values)
    _, prompt = np.unique(key[known], return_inverse=True)
    _, step = np.unique(case.facts.step[known], return_inverse=True)
    values = values[known] - (np.bincount(step, values[known]) / np.bincount(step))[step]
    steps = int(step.max(initial=0)) + 1
    cell, index = np.unique(prompt * steps + step, return_inverse=True)
    return np.bincount(index, values) / np.bincount(index), cell // steps


def _outlier_prompts(features: Features) -> Suspicion | None:
    """Look for outlier rows whose prompts are outliers at every step."""
    case = features.case
    outliers = features.location.outlier_rows
    if outliers is None or outliers.engines:
        return None
    rms = features.location.rms_of_rows
    cells = _by_prompt_and_step(case, np.log(np.maximum(rms, SMALLEST)))
    seen = None if cells is None else intraclass_correlation(*cells)
    # At least half of the variance is between prompts, not between steps of one prompt.
    if seen is None or seen.low < HALF:
        return None
    key = _prompt(case)
    assert key is not None
    far = len(np.unique(key[outliers.rows]))
    if far < FEWEST_OF_PATTERN:
        return None
    share = far / len(np.unique(key))
    by = "" if case.facts.prompt is not None else " (by `group_id`)"
    return Suspicion(
        confidence=LIKELY,
        message=f"The same prompts are outliers at every step{by}: "
        f"{share_of(share, 'prompts')} differ by {outliers.rms:.2g} nats rms, the others by "
        f"{outliers.rms_of_others:.2g}, and "
        f"{seen.value:.0%} of the variance between responses is between prompts.",
        evidence=[
            fact(
                "share of the variance of log rms log-ratios that is between prompts",
                "prompts decide, not steps",
                value=seen.value,
                low=seen.low,
                high=seen.high,
                prompts_at_several_steps=seen.prompts,
            ),
            *_prompt_lengths(case, outliers),
            features.validity.evidence,
        ],
        share_of_rows=float(outliers.rows.mean()),
    )


def _prompt_lengths(case: Case, outliers: OutlierRows) -> list[dict[str, object]]:
    """Return the median prompt lengths of outliers and other rows, if they differ much."""
    length = case.facts.prompt_length
    if length is None:
        return []
    these, others = (float(np.median(length[rows])) for rows in (outliers.rows, ~outliers.rows))
    if max(these, others) < LARGER * min(these, others):
        return []
    return [fact("median prompt length", "tokens", outliers=these, others=others)]


OUTLIER_PROMPTS = shipped("outlier-prompts", "difference", _outlier_prompts)
