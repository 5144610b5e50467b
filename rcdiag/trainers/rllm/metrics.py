"""rLLM's metrics of the difference between old and rollout (`offpolicy/`), on either backend.

On verl these are verl's metrics, which count rows without a token. On Fireworks they are rLLM's
own, which leave such rows out and add extremes and differences of probabilities. Sources:
rllm-org/rllm commit 9beb6e0f (2026-08-15), rllm/trainer/verl/verl_backend.py
(`process_backend_batch`) with package verl 0.8.0, verl/trainer/ppo/rollout_corr_helper.py;
rllm/trainer/fireworks/fireworks_policy_trainer.py (`_compute_offpolicy_metrics`).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from rcdiag.corrections.arithmetic import SAFETY_BOUND
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import Quantity, log_prob
from rcdiag.corrections.trainer_means import Batch, Metrics, once_a_batch, perplexities
from rcdiag.trainers.rllm.correction import ON_TINKER
from rcdiag.trainers.verl.metrics import off_policy, out_of_bounds, weight_metrics

Side = Literal["behavior", "target"]  # the policy that rLLM uses as old; in bypass mode behavior


def on_verl(batch: Batch, correction: Correction) -> Metrics:
    """Return verl's metrics under rLLM's prefixes, with those of weights; on Tinker nothing."""
    if correction == ON_TINKER:
        return {}
    weighting = correction.weighting
    of_weights: Metrics = {}
    if weighting is not None:
        of_weights = weight_metrics(
            batch, weighting, "rollout_is", of="applied", fractions_of="applied"
        )
        if weighting.outside == "zero":
            of_weights["rollout_is_oob_ratio"] = out_of_bounds(batch, weighting)
    of_policies = off_policy(batch)
    if correction.mode == "bypass":
        of_policies = _of_a_copy(batch, of_policies)
    return {
        **{f"rollout_correction/{name}": value for name, value in of_weights.items()},
        **{f"offpolicy/{name}": value for name, value in of_policies.items()},
    }


def _of_a_copy(batch: Batch, logged: Metrics) -> Metrics:
    """Return verl's metrics if old is a copy of the rollout; NaN if a log-prob is NaN."""
    nothing = 0.0 * logged["rollout_log_ppl"]
    # The ratio is 1 at every token, and verl's mean over N tokens divides by N + 1e-8.
    alike = {"ppl_ratio": 1.0, "chi2_token": batch.token_share(batch.rows.tokens) - 1.0}
    return {
        name: logged[name.replace("training", "rollout")]
        if name.endswith("_ppl")
        else nothing + alike.get(name, 0.0)
        for name in logged
    }


def on_fireworks(batch: Batch, correction: Correction) -> Metrics:
    """Return rLLM's own metrics, over rows with a token; weights are not logged."""
    if correction == ON_TINKER:
        return {}
    old: Side = "behavior" if correction.mode == "bypass" else "target"
    return {f"offpolicy/{name}": value for name, value in policies(batch, old).items()}


@once_a_batch
def policies(batch: Batch, old: Side) -> Metrics:
    """Return means over tokens and over rows, extremes, and the correlation of probabilities."""
    rows, tokens = batch.rows, batch.rows.tokens
    # log_ratio is not clamped; for the ratio it is.
    log_ratio = log_prob(old) - log_prob("behavior")
    ratio = log_ratio.clip(-SAFETY_BOUND, SAFETY_BOUND).exp()
    p, q = log_prob(old).exp(), log_prob("behavior").exp()
    training = (rows.behavior if old == "behavior" else rows.target) / rows.lengths
    of_rows = perplexities(training, rows.behavior / rows.lengths)
    sums = rows.sum(log_ratio)
    squared = np.exp(2.0 * np.clip(sums, -SAFETY_BOUND, SAFETY_BOUND))
    logged = {
        **{name: float(values.mean()) for name, values in of_rows.items()},
        "kl": -float(sums.sum()) / tokens,
        "k3_kl": float(rows.sum(log_ratio.k3()).sum()) / tokens,
        "log_ppl_diff_min": float(of_rows["log_ppl_diff"].min()),
        "log_ppl_diff_max": float(of_rows["log_ppl_diff"].max()),
        "chi2_token": float(rows.squares(ratio).sum()) / tokens - 1.0,
        "chi2_seq": float(squared.mean()) - 1.0,
    }
    of_tokens = {"logprob_abs_diff": abs(log_ratio), "prob_abs_diff": abs(p - q), "ratio": ratio}
    for name, values in of_tokens.items():
        logged |= {
            f"{name}/mean": float(rows.sum(values).sum()) / tokens,
            f"{name}/min": float(rows.min(values).min()),
            f"{name}/max": float(rows.max(values).max()),
        }
    correlation = _correlation(batch, p, q)
    return logged if correlation is None else {**logged, "prob_pearson_corr": correlation}


def _correlation(batch: Batch, p: Quantity, q: Quantity) -> float | None:
    """Return Pearson's correlation of the probabilities; None if those of a policy are constant."""
    rows, tokens = batch.rows, batch.rows.tokens
    mean_p, mean_q = (float(rows.sum(one).sum()) / tokens for one in (p, q))
    spread_p = float(rows.squares(p).sum()) - tokens * mean_p**2
    spread_q = float(rows.squares(q).sum()) - tokens * mean_q**2
    shared = float(rows.sum(p * q).sum()) - tokens * mean_p * mean_q
    if tokens <= 1 or not spread_p * spread_q > 0.0:
        return None
    return float(shared / np.sqrt(spread_p * spread_q))
