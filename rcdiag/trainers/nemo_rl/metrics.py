"""NeMo-RL's metrics of a correction, with its global denominators over all micro-batches.

Sources: NVIDIA-NeMo/RL commit 7ea279ab, nemo_rl/algorithms/loss/loss_functions.py,
nemo_rl/algorithms/utils.py (`calculate_kl`, `masked_mean`) and nemo_rl/algorithms/grpo.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.corrections.apply import ratio, token_weight
from rcdiag.corrections.arithmetic import Array, Tokens, exp, log
from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.corrections.quantities import RATIO, Quantity, bounded, named, quantity, stays
from rcdiag.corrections.trainer_means import Batch, Metrics
from rcdiag.trainers.nemo_rl.correction import EPSILON

PREFIX = "train/"


ERROR = named("error_factor")  # exp(|log_ratio|)


@quantity
def gen_kl(tokens: Tokens, kind: str) -> Array:
    """Return the KL of type `reference_policy_kl_type`, KL(sampler || trainer), nats."""
    return _k(kind, tokens.raw_log_ratio)


@quantity
def policy_kl(tokens: Tokens, kind: str) -> Array:
    """Return the KL of type `reference_policy_kl_type`, KL(trainer || sampler), nats."""
    return _k(kind, -tokens.raw_log_ratio)


def _k(kind: str, logs: Array) -> Array:
    """Return -x, x^2 / 2 or exp(x) - 1 - x of log-ratios x."""
    if kind == "k1":
        return -logs
    if kind == "k2":
        return 0.5 * np.square(logs)
    if logs.dtype == np.float64:
        return np.expm1(logs) - logs
    return exp(logs) - logs.dtype.type(1.0) - logs


@quantity
def jensen_shannon(tokens: Tokens) -> Array:
    """Return the mean of both policies' k3 relative to their mixture, nats."""
    half = tokens.target.dtype.type(0.5)
    mixture = log(half * exp(tokens.target) + half * exp(tokens.behavior))
    of_target, of_behavior = tokens.target - mixture, tokens.behavior - mixture
    return half * _k("k3", of_target) + half * _k("k3", of_behavior)


def _bounds(correction: Correction) -> tuple[float, float] | None:
    """Return the bounds of the importance sampling type; None if it has no bounds."""
    weighting = correction.weighting
    if correction.zeroing:
        return correction.zeroing[0].lower or 0.0, correction.zeroing[0].upper
    if weighting is None or weighting.outside == "truncate":
        return None
    return weighting.lower or 0.0, weighting.upper


class Kept(Struct, frozen=True):
    """A batch after the filter: which rows are kept, and the denominators of its metrics."""

    batch: Batch
    correction: Correction

    @property
    def errors(self) -> NDArray[np.float64]:
        """Return the mean of exp(|log_ratio|) of each row with a token, [rows]."""
        rows = self.batch.rows
        return rows.sum(ERROR) / rows.lengths

    @property
    def stays(self) -> NDArray[np.bool_]:
        """Tell which rows the filter keeps, [rows]; a row with a NaN error is dropped."""
        for rejection in self.correction.rejections:
            return self.errors <= rejection.upper
        return np.ones(len(self.batch.rows), np.bool_)

    @property
    def tokens(self) -> float:
        return self._more_than_0(float(self.batch.rows.lengths[self.stays].sum()))

    @property
    def rows(self) -> float:
        """Count the kept rows, including those without a token."""
        return self._more_than_0(float(self.stays.sum()) + self.batch.rows.empty)

    def _more_than_0(self, count: float) -> float:
        """Add 1e-8 to a count; in float32 this only changes a count of 0."""
        return count + self.batch.rows.epsilon or EPSILON

    def mean(self, of: Quantity) -> float:
        """Return the mean over kept tokens."""
        return float(self.batch.rows.sum(self.filtered(of)).sum() / self.tokens)

    def filtered(self, of: Quantity) -> Quantity:
        """Return a token quantity times the filter: 0 in dropped rows, except that NaN stays."""
        return of * stays(self.correction.rejections)

    def row_mean(self, values: NDArray[Any], of_empty: float) -> float:
        """Return the mean over kept rows; rows without a token contribute `of_empty`."""
        total = values[self.stays].sum() + of_empty * self.batch.rows.empty
        return float(total / self.rows)


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return all logged numbers under their keys."""
    kept, kl = Kept(batch, correction), correction.logging[:2]
    logged = {
        "token_mult_prob_error": kept.mean(ERROR),
        "gen_kl_error": kept.mean(gen_kl(kl)),
        "policy_kl_error": kept.mean(policy_kl(kl)),
        "js_divergence_error": kept.mean(jensen_shannon),
        "num_valid_samples": float(kept.stays.sum()) + batch.rows.empty,
    }
    by_sequence = "by sequence" in correction.logging
    logged |= _of_sequence_weights(kept) if by_sequence else _of_token_weights(kept)
    return {PREFIX + name: value for name, value in (logged | _errors(kept)).items()}


def _of_token_weights(kept: Kept) -> Metrics:
    correction = kept.correction
    # The ratio itself if the correction is off.
    weight = RATIO if correction.weighting is None else token_weight(correction)
    logged = {"sampling_importance_ratio": kept.mean(weight)}
    bounds = _bounds(correction)
    if correction.zeroing:
        left = kept.batch.rows.sum(kept.filtered(stays(correction.zeroing)))
        outside = (left == 0).astype(np.float64)
        lower, upper = bounds or (0.0, np.inf)
        logged["is_oob_ratio"] = kept.row_mean(outside, float(not lower <= 1.0 <= upper))
    elif bounds is not None:
        logged["is_oob_ratio"] = kept.mean(RATIO.outside(*bounds))
    return logged


def _of_sequence_weights(kept: Kept) -> Metrics:
    """Return metrics of products; a row that is empty or filtered has a product of 1.

    The trainer multiplies weights [rows, 1] by a mask [rows], which broadcasts to [rows, rows]: its
    mean weight is too large by the number of rows of a micro-batch. Here there is one batch.
    """
    rows = kept.batch.rows
    products = np.where(kept.stays, ratio(rows, "sequence"), 1.0)
    weighting = kept.correction.weighting or Weighting("sequence", np.inf)
    total = _weights(products, weighting).sum()
    total += rows.empty * float(_weights(np.ones(1), weighting)[0])
    counted = float(kept.stays.sum()) + rows.empty
    logged = {"sampling_importance_ratio": float(total * counted / kept.rows)}
    if (bounds := _bounds(kept.correction)) is not None:
        outside = (products < bounds[0]) | (products > bounds[1])
        logged["is_oob_ratio"] = float(rows.lengths[outside & kept.stays].sum() / kept.tokens)
    return logged


def _weights(products: NDArray[Any], weighting: Weighting) -> NDArray[Any]:
    lower = weighting.lower_or_reciprocal
    return bounded(products, lower, weighting.upper, weighting.outside)


def _errors(kept: Kept) -> Metrics:
    """Return the errors of sequences, before and after the filter."""
    if "no sequences" in kept.correction.logging:
        names = ("seq_mult_prob_error", "seq_mult_prob_error_after_mask")
        extremes = dict.fromkeys(
            f"{how}_{name}" for name in names for how in ("max", "mean", "min")
        )
        return dict.fromkeys(
            [*extremes, "num_masked_seqs_by_logprob_error", "masked_correct_pct"], 0.0
        )
    dropped = ~kept.stays
    correct = kept.batch.rows.reward[dropped] == 1.0
    return {
        **_extremes(kept.errors, "seq_mult_prob_error"),
        **_extremes(kept.errors[kept.stays], "seq_mult_prob_error_after_mask"),
        "num_masked_seqs_by_logprob_error": float(dropped.sum()),
        "masked_correct_pct": float(correct.mean()) if len(correct) else 0.0,
    }


def _extremes(errors: NDArray[Any], name: str) -> Metrics:
    if not len(errors):
        return {f"{how}_{name}": 0.0 for how in ("max", "mean", "min")}
    return {
        f"max_{name}": float(errors.max()),
        f"mean_{name}": float(errors.mean()),
        f"min_{name}": float(errors.min()),
    }
