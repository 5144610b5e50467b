"""Tunix logs how far sampler and trainer agree, in bypass mode too, and numbers of weights.

Tunix takes them by micro-batch, and then means, but for largest differences; here the batch is one.
Source: google/tunix commit c7d8950f (2026-08-21), tunix/rl/agentic/agentic_grpo_learner.py
(`_sampler_trainer_agreement`) and tunix/rl/rl_cluster.py (`_log_metrics`, which puts the mode after
the first part of a name).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from rcdiag.corrections.apply import applied_weights
from rcdiag.corrections.arithmetic import Array, Tokens, exp
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import RATIO, quantity
from rcdiag.corrections.trainer_means import Batch, Metrics, once_a_batch
from rcdiag.trainers.tunix.correction import UNSEEN

Side = Literal["behavior", "target"]
LEAST_VARIANCE = 1e-12  # product of the variances under the correlation's root, at least


@quantity
def distance(tokens: Tokens) -> Array:
    """Return |log_ratio| of each token before any clamp, nats."""
    return np.abs(tokens.raw_log_ratio)


@quantity
def probability(tokens: Tokens, side: Side) -> Array:
    """Return the probability of each token under one policy."""
    return exp(tokens.behavior if side == "behavior" else tokens.target)


@quantity
def probability_product(tokens: Tokens) -> Array:
    """Return the product of the two policies' probabilities of each token."""
    return exp(tokens.behavior) * exp(tokens.target)


@quantity
def probability_distance(tokens: Tokens) -> Array:
    """Return |trainer's - sampler's| probability of each token."""
    return np.abs(exp(tokens.target) - exp(tokens.behavior))


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return numbers of the two policies, and of the weights where there are any."""
    if correction.logging == UNSEEN:
        return {}
    weighting = correction.weighting
    if weighting is None:
        return agreement(batch)
    weights = applied_weights(batch.rows, weighting)
    return agreement(batch) | {
        "sampler_is/train/weight_mean": batch.token_mean(weights),
        "sampler_is/train/weight_max": float(batch.rows.max(weights).max()),
        "sampler_is/train/frac_clipped_at_threshold": batch.token_mean(weighting.upper < RATIO),
    }


@once_a_batch
def agreement(batch: Batch) -> Metrics:
    """Return differences of log-probs and probabilities, and the correlation of the latter."""
    rows = batch.rows
    return {
        "sampler_trainer/train/logp_diff_mean": batch.token_mean(distance),
        "sampler_trainer/train/logp_diff_max": float(rows.max(distance).max()),
        "sampler_trainer/train/prob_diff_mean": batch.token_mean(probability_distance),
        "sampler_trainer/train/prob_diff_max": float(rows.max(probability_distance).max()),
        "sampler_trainer/train/probs_pearson_corr": _correlation(batch),
    }


def _correlation(batch: Batch) -> float:
    """Return Pearson's correlation of the probabilities; near 0 where these hardly vary."""
    p, q = probability("target"), probability("behavior")
    mean_p, mean_q = batch.token_mean(p), batch.token_mean(q)
    spread_p = batch.token_mean_of_squares(p) - mean_p**2
    spread_q = batch.token_mean_of_squares(q) - mean_q**2
    shared = batch.token_mean(probability_product) - mean_p * mean_q
    return float(shared / np.sqrt(np.maximum(spread_p * spread_q, LEAST_VARIANCE)))
