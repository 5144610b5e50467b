"""SkyRL's metrics of a correction, with the table as one micro-batch.

Sources: skyrl 0.4.0, skyrl/backends/skyrl_train/utils/off_policy_correction_utils.py,
skyrl/train/trainer.py for the distances, and skyrl/backends/skyrl_train/utils/ppo_utils.py for the
losses relative to the rollout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.corrections.apply import ratio, statistic_of_rows
from rcdiag.corrections.correction import Correction, Rejection
from rcdiag.corrections.quantities import LOG_RATIO, RATIO, stays
from rcdiag.corrections.trainer_means import Batch, Metrics

CORRECTION, DISTANCE = "policy/loss_metrics/", "policy/rollout_train_logprobs_abs_diff_"


class Steps(Struct, frozen=True):
    """The rejections of a correction, by SkyRL's steps in order."""

    outlier: tuple[Rejection, ...]
    token: tuple[Rejection, ...]
    sequence: Rejection | None

    @classmethod
    def of(cls, correction: Correction) -> Steps:
        """Assign the rejections of a correction to SkyRL's steps."""
        by_statistic = {one.statistic: one for one in correction.rejections}
        outlier = [by_statistic.get(name) for name in ("seq_max_ratio", "seq_min_ratio")]
        return cls(
            outlier=tuple(one for one in outlier if one is not None),
            token=tuple(one for one in correction.rejections if one.statistic == "token"),
            sequence=by_statistic.get("geometric") or by_statistic.get("sequence"),
        )

    @property
    def before_weights(self) -> tuple[Rejection, ...]:
        return (*self.outlier, *self.token)


def _logs_weights(correction: Correction) -> bool:
    """Tell whether weights are logged; not those of a loss that computes weights itself."""
    return correction.weighting is not None and not correction.weights_in_loss


def metrics(batch: Batch, correction: Correction) -> Metrics:
    """Return all metrics under their keys."""
    logged = _distances(batch)
    steps = Steps.of(correction)
    if correction.rejections or _logs_weights(correction):
        of_correction = _ratios(batch) | _outliers(batch, steps)
        if steps.token:
            before = batch.rows.sum(stays(steps.outlier)).sum()
            after = batch.rows.sum(stays(steps.before_weights)).sum()
            of_correction["token_mask_ratio"] = float((before - after) / max(before, 1.0))
        of_correction |= _weights(batch, correction, steps) | _sequences(batch, steps)
        logged |= {CORRECTION + name: value for name, value in of_correction.items()}
    of_loss = _loss_on_rollout(batch, correction)
    return logged | {CORRECTION + name: value for name, value in of_loss.items()}


def _loss_on_rollout(batch: Batch, correction: Correction) -> Metrics:
    """Return what a loss whose ratio is relative to the rollout logs at the first update.

    Then the current policy is the old one. A replay gives the numbers of later updates.
    """
    weighting, rows = correction.weighting, batch.rows
    if weighting is None or not correction.weights_in_loss:
        return {}
    count = max(rows.tokens, 1)
    lower, upper = weighting.lower_or_reciprocal, weighting.upper
    if weighting.outside != "clip":  # dppo drops by its tests, rollout_is by the ratio
        inside = stays(correction.zeroing) if correction.zeroing else RATIO.within(lower, upper)
        return {"clip_ratio": float(rows.sum(~inside).sum() / count)}
    beyond = rows.sum(lower > RATIO).sum() + rows.sum(upper < RATIO).sum()
    return {
        "clip_ratio": float(beyond / count),
        "cispo/ratio_mean": float(rows.sum(RATIO).sum() / count),
        "cispo/ratio_clamped_mean": float(rows.sum(RATIO.clip(lower, upper)).sum() / count),
        "cispo/ratio_max": float(rows.max(RATIO).max()),
        "cispo/ratio_min": float(rows.min(RATIO).min()),
    }


def _distances(batch: Batch) -> Metrics:
    rows, count, distance = batch.rows, batch.rows.tokens, abs(LOG_RATIO)
    if not count:
        return {}
    mean = rows.sum(distance).sum() / count
    squares = rows.squares(distance).sum() - count * mean**2
    spread = np.sqrt(max(squares, 0.0) / (count - 1)) if count > 1 else np.nan
    return {
        f"{DISTANCE}mean": float(mean),
        f"{DISTANCE}std": float(spread),
        f"{DISTANCE}max": float(rows.max(distance).max()),
        f"{DISTANCE}min": float(rows.min(distance).min()),
    }


def _ratios(batch: Batch) -> Metrics:
    """Return moments of the ratio; all but the mean are over the padded grid, with 0 at masked."""
    rows = batch.rows
    places = batch.all_rows * rows.width
    total = rows.sum(RATIO).sum()
    squares = rows.squares(RATIO).sum() - total**2 / places
    least = float(rows.min(RATIO).min())
    return {
        "is_ratio_mean": float(total / max(rows.tokens, 1)),
        "is_ratio_std": float(np.sqrt(squares / (places - 1))) if places > 1 else np.nan,
        "is_ratio_max": float(rows.max(RATIO).max()),
        "is_ratio_min": least if places == rows.tokens else min(least, 0.0),
    }


def _share(batch: Batch, flags: NDArray[Any], of_empty: bool = False) -> float:
    """Return a share of all rows; `of_empty` is the flag of rows without a token."""
    return float((flags.sum() + of_empty * batch.rows.empty) / batch.all_rows)


def _outliers(batch: Batch, steps: Steps) -> Metrics:
    if not steps.outlier:
        return {}
    above, below = np.zeros(len(batch.rows), np.bool_), np.zeros(len(batch.rows), np.bool_)
    for rejection in steps.outlier:
        if rejection.lower is None:
            above = batch.rows.max(RATIO) > rejection.upper
        else:
            below = batch.rows.min(RATIO) < rejection.lower
    return {
        "outlier_seq_masked_ratio": _share(batch, above | below),
        "outlier_seq_over_high_ratio": _share(batch, above),
        "outlier_seq_under_low_ratio": _share(batch, below),
    }


def _weights(batch: Batch, correction: Correction, steps: Steps) -> Metrics:
    weighting = correction.weighting
    if weighting is None or not _logs_weights(correction):
        return {}
    if weighting.level == "token":
        counted = stays(steps.before_weights)
        above = batch.rows.sum((weighting.upper < RATIO).where(counted)).sum()
        share = above / max(batch.rows.sum(counted).sum(), 1.0)
        return {"tis_token_clip_high_ratio": float(share)}
    capped = ratio(batch.rows, weighting.level, weighting.over) > weighting.upper
    return {"tis_seq_clip_high_ratio": _share(batch, capped, weighting.upper < 1.0)}


def _sequences(batch: Batch, steps: Steps) -> Metrics:
    """Return shares of sequences; a row that has become empty has the statistic 1."""
    rejection = steps.sequence
    if rejection is None:
        return {}
    values = statistic_of_rows(batch.rows, rejection)
    low, high = rejection.lower or 0.0, rejection.upper
    above, below = values > high, values < low
    prefix = "geo" if rejection.statistic == "geometric" else "product"
    shares = {
        "masked": _share(batch, above | below, high < 1.0 or low > 1.0),
        "over_high": _share(batch, above, high < 1.0),
        "under_low": _share(batch, below, low > 1.0),
    }
    return {f"{prefix}_sequence_mask_{name}_ratio": value for name, value in shares.items()}
