"""The two factors of the ratio, always apart: sampler to trainer, and trainer to current policy."""

from __future__ import annotations

import numpy as np

from rcdiag.results import Factor
from rcdiag.statistics.histograms import LOG_RATIO_EDGES, log_ratio_counts
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.suite import Suite, SuiteState
from rcdiag.usecases.replay.batch import ReplayBatch

FACTORS = {
    "mismatch": ("rollout", "old"),
    "staleness": ("old", "current"),
    "product": ("rollout", "current"),
}


def factors(batch: ReplayBatch, seed: int) -> dict[str, Factor]:
    """KL and effective sample size of each."""
    return {name: _factor(batch, *pair, seed) for name, pair in FACTORS.items()}


def _factor(batch: ReplayBatch, behavior: str, target: str, seed: int) -> Factor:
    pair = batch.pair(behavior, target)
    suite = Suite(SuiteState.of(pair), seed)
    log_ratio = pair.log_ratio
    largest = METRICS["log_ratio_abs_max"].value(suite).value
    filled = log_ratio_counts(log_ratio)
    return Factor(
        behavior=behavior,
        target=target,
        k3_kl=METRICS["k3_kl"].value(suite),
        ess_seq=METRICS["ess_seq"].value(suite),
        log_ratio_abs_max=largest,
        log_ratio_histogram={
            "edges": np.asarray(LOG_RATIO_EDGES).tolist(),
            "counts": filled.astype(float).tolist(),
        },
    )
