"""Tunix's metrics: agreement of sampler and trainer (in bypass mode too), and weights.

Tunix computes them per micro-batch and averages, except for maxima; here there is one batch.
Source: google/tunix commit c7d8950f (2026-08-21), tunix/rl/agentic/agentic_grpo_learner.py
(`_sampler_trainer_agreement`) and tunix/rl/rl_cluster.py (`_log_metrics`, which inserts the mode
after the first part of a name).
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.apply import applied_weights
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import RATIO, bare_log_ratio, log_prob, named
from rcdiag.corrections.trainer_means import Batch, Metrics, once_a_batch
from rcdiag.trainers.tunix.correction import UNSEEN

LEAST_VARIANCE = 1e-12  # lower bound on the product of variances in the correlation


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return metrics of the two policies, and of the weights if there are any."""
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
    """Return differences of log-probs and probabilities, and the probabilities' correlation."""
    of_log_probs, of_probabilities = abs(bare_log_ratio), named("tv")
    return {
        "sampler_trainer/train/logp_diff_mean": batch.token_mean(of_log_probs),
        "sampler_trainer/train/logp_diff_max": float(batch.rows.max(of_log_probs).max()),
        "sampler_trainer/train/prob_diff_mean": batch.token_mean(of_probabilities),
        "sampler_trainer/train/prob_diff_max": float(batch.rows.max(of_probabilities).max()),
        "sampler_trainer/train/probs_pearson_corr": _correlation(batch),
    }


def _correlation(batch: Batch) -> float:
    """Return Pearson's correlation of the probabilities; near 0 if they hardly vary."""
    p, q = log_prob("target").exp(), log_prob("behavior").exp()
    mean_p, mean_q = batch.token_mean(p), batch.token_mean(q)
    spread_p = batch.token_mean_of_squares(p) - mean_p**2
    spread_q = batch.token_mean_of_squares(q) - mean_q**2
    shared = batch.token_mean(p * q) - mean_p * mean_q
    return float(shared / np.sqrt(np.maximum(spread_p * spread_q, LEAST_VARIANCE)))
