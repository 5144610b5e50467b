"""verl 0.6.0 and its next development version have weights alone, masked by zeros or by mask.

Sources: package verl 0.6.0, `mismatch_helper.py`; verl's document of 2025-10-27.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from rcdiag.corrections.apply import ratio, raw_weights, veto_quantity, vetoed_rows
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.quantities import Kept, Quantity
from rcdiag.corrections.rejections import within
from rcdiag.corrections.trainer_means import Batch
from rcdiag.statistics.quantiles import Ordered
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trainer import (
    Claim,
    Config,
    ConfigFile,
    Metrics,
    Trainer,
    choice,
    optional_number,
    positive,
)
from rcdiag.trainers.verl.family import FAMILY, PACKAGE, PATH
from rcdiag.trainers.verl.ignored import ignored_before_061
from rcdiag.trainers.verl.loss_in_config import loss_in
from rcdiag.trainers.verl.losses import UPDATE_060, UPDATE_20251027
from rcdiag.trainers.verl.metrics import ALWAYS, off_policy, weight_metrics, weight_quantities
from rcdiag.trainers.verl.whole_config import is_whole, whole_config_findings

LEVELS = ("token", "sequence", "geometric")
PERCENTILES = (25, 50, 75, 95, 99)


def read(config: Config, *, mask_is_rejection: bool) -> Correction:
    """Read the canonical correction. Without a threshold everything is off, metrics too."""
    level = choice(config, "rollout_is_level", LEVELS)
    mode = choice(config, "rollout_is_mode", ("truncate", "mask"))
    veto = optional_number(config, "rollout_is_veto_threshold")
    if config["rollout_is_threshold"] is None:
        return Correction()
    upper = positive(config, "rollout_is_threshold")
    lower = optional_number(config, "rollout_is_threshold_lower")
    lower = 1.0 / upper if lower is None else lower
    outside = "truncate" if mode == "truncate" else "mask" if mask_is_rejection else "zero"
    rejections = (Rejection(level, upper, lower),) if outside == "mask" else ()
    return Correction(
        weighting=Weighting(level, upper, lower, outside, nan_stays=True),  # type: ignore[arg-type]
        rejections=rejections,
        # verl takes log(threshold): 0 gives -inf and negatives NaN, so nothing is vetoed.
        veto=veto if veto is not None and veto > 0 else None,
        veto_on_weights=not mask_is_rejection,
        weights_applied=bool(config["rollout_is"]),
    )


def quantities(correction: Correction) -> list[Quantity]:
    """Return the quantities of tokens that `metrics` reads."""
    needed = list(ALWAYS)
    if correction.weighting is None:
        return needed
    weighting = correction.weighting
    needed += weight_quantities(weighting, "raw")
    if correction.veto is not None:
        needed.append(veto_quantity(correction.veto))
    if weighting.level == "token" and weighting.outside != "truncate":
        needed.append(_kept(weighting))
    return needed


def _kept(weighting: Weighting) -> Kept:
    return Kept((("ratio", weighting.lower_or_reciprocal, weighting.upper),))


def metrics(batch: Batch, correction: Correction, *, percentiles: bool) -> Metrics:
    """Return all logged numbers under their keys with prefix; none without a threshold."""
    weighting = correction.weighting
    if weighting is None:
        return {}
    logged = {
        **_veto(batch, correction),
        **weight_metrics(batch, weighting, "rollout_is", of="raw", geometric_fractions="tokens"),
    }
    if percentiles:
        logged |= _percentiles(batch, weighting)
    if weighting.outside != "truncate":
        logged |= _masked(batch, weighting)
    logged |= {f"mismatch_{name}": value for name, value in _old_names(batch).items()}
    return {f"mismatch/{name}": value for name, value in logged.items()}


def _old_names(batch: Batch) -> Metrics:
    """Return the numbers of the two policies that 0.6.0 logs: all but chi-squared."""
    return {name: value for name, value in off_policy(batch).items() if not name.startswith("chi2")}


def _veto(batch: Batch, correction: Correction) -> Metrics:
    if correction.veto is None:
        return {"rollout_is_veto_fraction": 0.0, "rollout_is_catastrophic_token_fraction": 0.0}
    below = batch.rows.columns[veto_quantity(correction.veto)]
    vetoed = vetoed_rows(batch.rows, correction.veto)
    return {
        "rollout_is_veto_fraction": float(vetoed.sum() / batch.all_rows),
        "rollout_is_catastrophic_token_fraction": batch.token_mean(below),
    }


def _percentiles(batch: Batch, weighting: Weighting) -> Metrics:
    """Return percentiles of raw token weights; linear between neighbours, as torch.quantile."""
    rows = batch.rows
    if weighting.level == "token":
        assert rows.ratios is not None
        ordered = Ordered.of(rows.ratios)
    else:
        raw = ratio(rows, weighting.level)
        order = np.argsort(raw)
        ordered = Ordered(raw[order], np.cumsum(rows.lengths[order]))
    if np.isnan(raw_weights(rows, weighting).sum.sum()):
        return {f"rollout_is_p{percent}": np.nan for percent in PERCENTILES}
    return {f"rollout_is_p{percent}": ordered.quantile(percent / 100.0) for percent in PERCENTILES}


def _masked(batch: Batch, weighting: Weighting) -> Metrics:
    """Count masked rows; one without a token has ratio 1, and counts if that is out of bounds."""
    rows, lower, upper = batch.rows, weighting.lower_or_reciprocal, weighting.upper
    outside_padding = 0.0 if lower <= 1.0 <= upper else 1.0
    if weighting.level == "token":
        kept = rows.columns[_kept(weighting)].sum
        touched = batch.padded((kept < rows.lengths).astype(np.float64))
    else:
        keep = within(ratio(rows, weighting.level), lower, upper)
        kept = np.where(keep, rows.lengths, 0)
        touched = batch.padded((~keep).astype(np.float64), outside_padding)
    return {
        "rollout_is_masked_fraction": batch.token_share(float((rows.lengths - kept).sum())),
        "rollout_is_seq_masked_fraction": float(touched.mean()),
    }


_SETTINGS = {
    "rollout_is": False,
    "rollout_is_threshold": None,
    "rollout_is_threshold_lower": None,
    "rollout_is_level": "token",
    "rollout_is_mode": "truncate",
    "rollout_is_veto_threshold": None,
}
_EXAMPLE = {"rollout_is": True, "rollout_is_threshold": 2.0}


def _claim(config: Config, document: Document) -> Claim | None:
    """Claim settings by names that no other generation has."""
    names = {
        "rollout_is_level",
        "rollout_is_mode",
        "rollout_is_veto_threshold",
        "rollout_is_threshold_lower",
    }
    if not names & set(config):
        return None
    return Claim(0.9, "verl-20251027 has the same settings, and rejects through the mask")


GENERATIONS = (
    Trainer(
        name="verl-0.6.0",
        family=FAMILY,
        package=PACKAGE,
        settings={**_SETTINGS, "rollout_is_veto_threshold": 1e-4},
        presets={"default": _EXAMPLE},
        read=partial(read, mask_is_rejection=False),
        ignored=ignored_before_061,
        quantities=quantities,
        metrics=partial(metrics, percentiles=True),
        percentiles=True,
        update=UPDATE_060,
        config=ConfigFile(
            path=PATH,
            claim=_claim,
            whole=is_whole,
            loss=loss_in,
            findings=partial(whole_config_findings, version="0.6.0"),
        ),
    ),
    Trainer(
        name="verl-20251027",
        family=FAMILY,
        package=PACKAGE,
        settings=_SETTINGS,
        presets={"default": _EXAMPLE},
        read=partial(read, mask_is_rejection=True),
        ignored=ignored_before_061,
        quantities=quantities,
        metrics=partial(metrics, percentiles=False),
        update=UPDATE_20251027,
        config=ConfigFile(
            path=PATH,
            whole=is_whole,
            loss=loss_in,
            findings=partial(whole_config_findings, version="20251027"),
        ),
    ),
)
