"""Settings of ROLL whose numbers are stored."""

from __future__ import annotations

from typing import Any


def _weight(**settings: Any) -> dict[str, Any]:
    return {"is_weight": {"enabled": True, **settings}}


def _filters(*filters: dict[str, Any]) -> dict[str, Any]:
    return {"filters": [{"enabled": True, **each} for each in filters]}


_BY_DIFFERENCE = {"ratio_enabled": False, "diff_enabled": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "token weights": _weight(),
    "segment weights": _weight(weight_type="segment", upper_bound=1.5),
    "geometric weights": _weight(weight_type="geometric"),
    "sequence weights": _weight(weight_type="sequence"),
    "unbounded weights": _weight(upper_bound=None),
    "sequence weights below 0.3": _weight(weight_type="sequence", upper_bound=0.3),
    "token filter": _filters({}),
    "segment filter": _filters({"agg_type": "segment"}),
    "geometric filter": _filters({"agg_type": "geometric"}),
    "sequence filter": _filters({"agg_type": "sequence"}),
    "token difference": _filters({**_BY_DIFFERENCE, "diff_low": -0.05, "diff_high": 0.05}),
    "segment difference": _filters({**_BY_DIFFERENCE, "agg_type": "segment", "diff_low": -0.03}),
    "geometric difference": _filters(
        {**_BY_DIFFERENCE, "agg_type": "geometric", "diff_low": -0.06, "diff_high": 0.02}
    ),
    "sequence difference": _filters({**_BY_DIFFERENCE, "agg_type": "sequence"}),
    "ratio and difference": _filters(
        {"diff_enabled": True, "ratio_low": 0.3, "diff_low": -0.1, "diff_high": 0.1}
    ),
    "weights and filter": _weight(weight_type="segment", upper_bound=1.5)
    | _filters({"ratio_low": 0.7, "ratio_high": 1.4}),
    "two filters of one type": _filters(
        {"ratio_low": 0.2, "ratio_high": 1.05}, {"ratio_low": 0.9, "ratio_high": 3.0}
    ),
    "two filters of two types": _weight()
    | _filters({"ratio_high": 1.5, "ratio_low": 0.3}, {"agg_type": "geometric", "ratio_low": 0.4}),
    "filters that are all off": {"filters": [{"enabled": False}]},
    "filter without a test": _filters({"ratio_enabled": False}),
}
_CORRECTED = _weight() | _filters({"ratio_low": 0.5, "ratio_high": 1.1})
_MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
_LOSSES: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "gspo": {"importance_sampling": "seq"},
    "gpg": {"pg_variant": "vanilla"},
    "tis": {"pg_variant": "tis"},
    "cispo": {"pg_variant": "cispo"},
    "kimi15": {"pg_variant": "kimi15"},
    "topr": {"pg_variant": "topr"},
}
# Every loss under the default correction and with weights and a filter, in every aggregation.
UPDATES = {
    f"{loss}, {mode}{said}": {**config, **correction, "loss_agg_mode": mode}
    for loss, config in _LOSSES.items()
    for mode in _MODES
    for said, correction in (("", {}), (", corrected", _CORRECTED))
    if loss == "vanilla" or (mode == "seq-mean-token-mean" and said)
} | {
    "vanilla, dual clip": {"dual_clip_loss": True},
    "tis, bounds": {"pg_variant": "tis", "actor_train.tis_lower_bound": 0.8,
                    "actor_train.tis_upper_bound": 1.2},
    "cispo, bounds": {"pg_variant": "cispo", "actor_train.cispo_epsilon_low": 0.05,
                      "actor_train.cispo_epsilon_high": 0.3},
    "cispo, unified mask": {"pg_variant": "cispo", "actor_train.cispo_use_unified_mask": True},
    "kimi15, tau": {"pg_variant": "kimi15", "actor_train.kimi15_tau": 0.5},
    "topr, weights": {"pg_variant": "topr", "actor_train.topr_positive_weight": 2.0,
                      "actor_train.topr_negative_weight": 0.5},
    "vanilla, range": {"use_pg_clip_range": True, "pg_clip_low": 0.1, "pg_clip_high": 0.3},
}  # fmt: skip
