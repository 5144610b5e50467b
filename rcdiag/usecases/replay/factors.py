"""The two factors of the ratio, kept separate: sampler to trainer, trainer to current policy."""

from __future__ import annotations

import numpy as np

from rcdiag.diagnosis.guides import judged_metric, under_diagnosis, with_guide, without_numbers
from rcdiag.diagnosis.update_health import MOVED
from rcdiag.results import Diagnosis, Factor
from rcdiag.statistics.extremes import RowCount, impossible
from rcdiag.statistics.histograms import LOG_RATIO_EDGES, log_ratio_counts
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.suite import Suite, SuiteState
from rcdiag.usecases.replay.update_batch import ReplayBatch

FACTORS = {
    "mismatch": ("rollout", "old"),
    "staleness": ("old", "current"),
    "product": ("rollout", "current"),
}


# Guides of pairs with their own limits: an update may move the policy further than two engines may
# differ.
LIMITS = {("old", "current"): MOVED}


def factors(
    batch: ReplayBatch, diagnosis: Diagnosis | None = None, policies: tuple[str, ...] = ()
) -> dict[str, Factor]:
    """Return KL and effective sample size of both factors and of their product.

    The diagnosis limits the levels of its pair; `policies` are the table's columns that hold the
    rollout, old and current log-probs.
    """
    columns = dict(zip(("rollout", "old", "current"), policies, strict=False))
    measured = {}
    for name, (behavior, target) in FACTORS.items():
        pair = batch.pair(behavior, target)
        suite = Suite(SuiteState.of(pair), batch.rounding)
        constant = RowCount.of(pair.tokens).constant - batch.scored_roles
        log_probs = pair.values.behavior, pair.values.target
        if constant & {behavior, target} or any(impossible(one).any() for one in log_probs):
            values = without_numbers()  # a recorded column holds no log-probs
        else:
            own = {one: judged_metric(METRICS[one], suite) for one in ("k3_kl", "ess_seq")}
            values = under_diagnosis(
                own, diagnosis, (columns.get(behavior, ""), columns.get(target, ""))
            )
        measured[name] = Factor(
            behavior=behavior,
            target=target,
            k3_kl=with_guide(values["k3_kl"], LIMITS.get((behavior, target))),
            ess_seq=values["ess_seq"],
            log_ratio_abs_max=METRICS["log_ratio_abs_max"].value(suite).value,
            log_ratio_histogram={
                "edges": np.asarray(LOG_RATIO_EDGES).tolist(),
                "counts": log_ratio_counts(pair.log_ratio).astype(float).tolist(),
            },
        )
    return measured
