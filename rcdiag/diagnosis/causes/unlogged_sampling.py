"""Sampling parameters that neither column shows: detected from metadata, entropies or re-scores."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.causes.cause import (
    CLEAR,
    EXACT,
    LIKELY,
    WEAK,
    Suspicion,
    fact,
    mean_ratio_fact,
    shipped_family,
)
from rcdiag.diagnosis.causes.kept_sets import declared_kept_set, sets_of_one
from rcdiag.diagnosis.causes.temperatures import MOST_OF_SQUARES
from rcdiag.diagnosis.features import Features, RecordedKeptSets
from rcdiag.diagnosis.features.log_ratios import ENGINE_NOISE
from rcdiag.diagnosis.thresholds import BY_ITS_ERROR, ENOUGH, MUCH_LARGER, SLIGHT
from rcdiag.formats import mean_ratio

UNLOGGED_SLUGS = ("temperature-silent", "top-p-silent")
# Least |z| of surprisal minus entropy: an engine that rounds its entropies moves their mean a
# little, whichever distribution sampled.
Z_OF_ENTROPIES = 5.0


def _unlogged(features: Features) -> Suspicion | None:
    """Detect sampling parameters that neither column shows.

    Entropies decide where the table has them: under the distribution that sampled, E[-log p] equals
    the entropy.
    """
    if not features.log_ratios.show_sampling or features.log_ratios.rms > SLIGHT:
        return None
    kept = features.kept_sets
    if kept is not None and kept.sampler_is_over_them is not None:
        return None if kept.sampler_is_over_them else _unlogged_by_kept_ids(kept)
    stated = _unlogged_by_metadata(features)
    if stated is not None:
        return stated
    excess = _surprisal_minus_entropy(features)
    if excess is not None:
        return _unlogged_by_entropy(features, *excess)
    return _unlogged_by_kept_set(features) or _unlogged_by_rescore(features)


def _unlogged_by_metadata(features: Features) -> Suspicion | None:
    side, trained = features.declared.sampler, features.declared.trainer.temperature
    if side.temperature is None or side.sampling_temperature in (None, side.temperature):
        return None
    if trained not in (None, side.temperature):
        return None
    return Suspicion(
        slug="temperature-silent",
        confidence=EXACT,
        message=f"Metadata says that tokens were sampled at temperature "
        f"{side.sampling_temperature:g}; both columns are of temperature {side.temperature:g}.",
        evidence=[
            fact(
                "temperature",
                "sampling and record differ",
                sampled=side.sampling_temperature,
                recorded=side.temperature,
            )
        ],
    )


def _surprisal_minus_entropy(features: Features) -> tuple[float, float] | None:
    """Return the mean of -log p minus the entropy, in nats, and its z score.

    None without entropies, and where tokens were left out, which may be the unlikely ones.
    """
    case = features.case
    if case.picked_tokens:
        return None
    for name in (case.trainer, case.sampler):
        entropy = case.entropy.get(name or "")
        if entropy is None:
            continue
        tokens = case.tokens
        own = tokens.trainer if name == case.trainer else tokens.sampler
        excess = -own - entropy[tokens.place]
        usable = np.isfinite(excess)
        if usable.sum() >= ENOUGH:
            return float(excess[usable].mean()), tokens.z(np.where(usable, excess, 0.0))
    return None


def _unlogged_by_entropy(features: Features, mean: float, z: float) -> Suspicion | None:
    if abs(z) < Z_OF_ENTROPIES:
        return None
    top_p = features.case.facts.top_p
    cut = top_p is not None and bool(np.any(top_p < 1.0))
    slug = "top-p-silent" if cut and z < 0 else "temperature-silent"
    either = top_p is None and z < 0  # a kept set and a low temperature both take likelier tokens
    others = ["top-p-silent" if slug == "temperature-silent" else "temperature-silent"]
    if z > 0:  # without them, tokens that bans, biases and penalties favour are less likely
        others = ["logit-bias", "repetition-penalty", "presence-penalty"]
    return Suspicion(
        slug=slug,
        confidence=WEAK if either else LIKELY,
        message=f"Sampled tokens are {'more likely' if mean < 0 else 'less likely'} than tokens of "
        f"the recorded distribution would be, by a mean of {abs(mean):.3f} nats ({z:+.0f} standard "
        "errors), while both columns agree: tokens were drawn from another distribution.",
        evidence=[
            fact(
                "surprisal - entropy", "0 for samples of the recorded distribution", mean=mean, z=z
            )
        ],
        also_possible=others,
    )


def _unlogged_by_kept_set(features: Features) -> Suspicion | None:
    """Detect rows that declare top-p while E[ratio] = 1: no mass is missing."""
    log_ratios = features.log_ratios
    if (
        declared_kept_set(features) != "top-p-renormalised"
        or abs(log_ratios.ratio_mean[1]) >= BY_ITS_ERROR
    ):
        return None
    if sets_of_one(features, features.case.sampler):
        return None  # the log-probs were recorded over the kept sets, as they should be
    top_p = features.case.facts.top_p
    value = float(np.nanmedian(top_p)) if top_p is not None else 1.0
    return Suspicion(
        slug="top-p-silent",
        confidence=LIKELY,
        message=f"Rows say that they were sampled with top-p {value:g}; E[ratio] is "
        f"{mean_ratio(log_ratios.ratio_mean[0])}, so both columns are of the whole distribution.",
        evidence=[
            mean_ratio_fact(features, "the recorded distribution lacks no mass"),
            fact("top_p of the rows", "the table says so", declared=value),
        ],
    )


def _unlogged_by_kept_ids(kept: RecordedKeptSets) -> Suspicion:
    """Report tokens that were alone in their kept set although their recorded log-prob is not 0."""
    whose = "they are of the whole distribution, and the trainer's are over the kept sets"
    if not kept.trainer_is_over_them:
        whose = "both columns are of the whole distribution"
    return Suspicion(
        slug="top-p-silent",
        confidence=EXACT,
        message=f"The sampler's kept sets have {kept.mean_size:.3g} tokens on average. At "
        f"{kept.of_one:,} of {kept.tokens:,} tokens only one was left, so it was certain; these "
        f"are recorded with a mean of {kept.sampler_of_one:.3f} nats: {whose}.",
        evidence=[kept.fact("over the kept ids the log-prob would be 0 where one token was left")],
    )


def _unlogged_by_rescore(features: Features) -> Suspicion | None:
    """Look for two columns that agree with each other but not with a re-score at T of the rows."""
    case, rescored = features.case, features.rescored[1]
    if rescored is None:
        return None
    seen = features.between(case.sampler, rescored)
    between = features.between(str(case.trainer), rescored)
    if seen.power is None or seen.by_log_prob < MOST_OF_SQUARES:
        return None
    if between.rms <= max(MUCH_LARGER * features.log_ratios.rms, ENGINE_NOISE):
        return None
    return Suspicion(
        slug="temperature-silent",
        confidence=CLEAR,
        message=f"`{case.sampler}` and `{case.trainer}` agree, and `{rescored}`, scored at "
        f"the rows' temperature, is their distribution at T = {seen.power:.2f}: tokens were "
        "sampled at a temperature that neither column has.",
        evidence=[
            fact(
                "1 - slope of the log-ratio on the re-scored log-prob",
                "a temperature",
                value=seen.power,
            )
        ],
    )


UNLOGGED_SAMPLING = shipped_family(UNLOGGED_SLUGS, "distribution", _unlogged)
