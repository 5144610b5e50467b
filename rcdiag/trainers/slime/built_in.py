"""slime logs what its built-in clamp and IcePop do to weights, and the distance of log-probs.

Means are over sequences, or over tokens with --calculate-per-token-loss. Source: slime commit
624b824a8, slime/backends/megatron_utils/loss.py (`vanilla_tis_function`, `icepop_function`,
`policy_loss_function`).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import SUM, K, Kept, Quantity, Ratio, Reduction
from rcdiag.corrections.trainer_means import Batch
from rcdiag.trainers.slime import mis
from rcdiag.trainers.slime.chosen_by_flags import logged_of
from rcdiag.trainers.trainer import Metrics

DISTANCE = "train_rollout_logprob_abs_diff"


class Distance(Struct, frozen=True):
    """|old - rollout| log-prob of a token, nats."""

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return np.abs(tokens.raw_log_ratio)


def mean_of_tokens(batch: Batch, values: NDArray) -> float:
    """Return the mean of means of rows over tokens; a row without a token counts as one."""
    return float((values * batch.rows.lengths).sum() / (batch.rows.tokens + batch.rows.empty))


def mean_of(per_token: bool) -> mis.Mean:
    return mean_of_tokens if per_token else mis.mean_of_rows


def ratio_quantities(correction: Correction) -> list[Quantity]:
    """Return the quantities of tokens that `ratio_metrics` reads."""
    return [Ratio(), K("distance"), _within(correction)]


def ratio_metrics(batch: Batch, correction: Correction, mean: mis.Mean) -> Metrics:
    """Return what the clamp and IcePop log of the ratios that they bound."""
    rows = batch.rows
    of_rows = {
        "tis": rows.columns[Ratio()].sum / rows.lengths,
        "tis_abs": rows.columns[K("distance")].sum / rows.lengths,
        "tis_clipfrac": 1.0 - rows.columns[_within(correction)].sum / rows.lengths,
    }
    return {name: mean(batch, values) for name, values in of_rows.items()}


def _within(correction: Correction) -> Kept:
    """Return 1 at tokens whose ratio the bounds leave as it is."""
    weighting = correction.weighting
    assert weighting is not None
    return Kept((("ratio", weighting.lower_or_reciprocal, weighting.upper),))


def quantities(correction: Correction) -> list[Quantity]:
    """Return the quantities of tokens that `metrics` reads."""
    function, _ = logged_of(correction)
    if function == "helper":
        return mis.quantities(correction)
    ratios = [] if function == "none" else ratio_quantities(correction)
    return [Distance(), *ratios]


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return the numbers of the chosen function, under their keys without `train/`."""
    function, per_token = logged_of(correction)
    mean = mean_of(per_token)
    if function == "helper":
        return mis.metrics(batch, correction, mean)
    # With --use-rollout-logprobs slime compares the current policy, which is the old one at first.
    distance = mean(batch, batch.rows.columns[Distance()].sum / batch.rows.lengths)
    ratios = {} if function == "none" else ratio_metrics(batch, correction, mean)
    return {DISTANCE: distance, **ratios}
