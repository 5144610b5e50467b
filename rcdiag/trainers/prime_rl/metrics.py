"""prime-rl's metrics: five statistics of each number, over all tokens or over sequence means.

Sources: prime-rl commit 559b4477, src/prime_rl/trainer/rl/loss.py (`default_loss_fn`, `ipo_loss_fn`
and `_safe_mean`), train.py, and `Tensors` in src/prime_rl/trainer/utils.py; its pull request #3418
removed what only DPPO logged.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.arithmetic import Tokens
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import quantity, stays, unclamped_k3
from rcdiag.corrections.trainer_means import Batch, Metrics


@quantity
def advantage_has(tokens: Tokens, sign: int) -> NDArray[np.bool_]:
    """Return 1 where the advantage has the given sign, 1 or -1."""
    result: NDArray[np.bool_] = np.sign(tokens.advantage) == sign
    return result


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return all metrics; a row without a token counts as 0 in means over sequences."""
    rows, is_kept = batch.rows, stays(correction.rejections)
    dropped = rows.sum(~is_kept)
    kl_dropped = rows.sum(unclamped_k3.where(~is_kept))
    kl_kept = rows.sum(unclamped_k3.where(is_kept))
    of_rows = {
        "masked_mismatch_kl": _mean(kl_dropped, dropped),
        "unmasked_mismatch_kl": _mean(kl_kept, rows.lengths - dropped),
        "is_masked": dropped / rows.lengths,
    }
    # Only DPPO distinguishes the signs of the advantage.
    for sign in (1, -1) if correction.loss == "dppo_tv" else ():
        of_sign = rows.sum(~is_kept & advantage_has(sign))
        side, name = ("high", "positive") if sign > 0 else ("low", "negative")
        of_rows[f"is_masked_{side}"] = of_sign / rows.lengths
        of_rows[f"masked_advantage_{name}"] = _mean(of_sign, dropped)
    logged = statistics("mismatch_kl/all", rows.values(unclamped_k3))  # a median needs all
    for name, values in of_rows.items():
        logged |= statistics(name, batch.padded(values))
    return logged


def _mean(sums: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of some tokens of each sequence; 0 if there are none."""
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), 0.0)


def statistics(name: str, values: NDArray[np.float64]) -> Metrics:
    """Return mean, lower median, unbiased deviation, minimum and maximum, as torch does."""
    count = len(values)
    median = np.sort(values)[(count - 1) // 2]
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/median": float(np.nan if np.isnan(values).any() else median),
        f"{name}/std": float(values.std(ddof=1)) if count > 1 else float(np.nan),
        f"{name}/min": float(values.min()),
        f"{name}/max": float(values.max()),
    }
