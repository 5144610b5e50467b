"""ROLL's `train_infer_correction`: weights with an upper bound, and a list of filters.

Sources: ROLL commit 8eb27cc2 (2026-08-19), roll/configs/base_config.py
(`TrainInferCorrectionConfig`) and roll/utils/train_infer_corrections.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from rcdiag.corrections.arithmetic import Guard
from rcdiag.corrections.bounds import LEVELS as RATIOS
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.errors import did_you_mean
from rcdiag.results import Finding
from rcdiag.trainers.roll.metrics import FILTERS, LEVEL_OF_DIFFERENCE
from rcdiag.trainers.settings_table import Config, Refused, Setting, Settings
from rcdiag.trainers.settings_text import rounded
from rcdiag.trainers.writing import Facts

LEVELS = ("token", "segment", "geometric", "sequence")
# Statistics of the probability difference: of a token, its mean over a segment or row, its sum.
DIFFERENCES = {level: statistic for statistic, level in LEVEL_OF_DIFFERENCE.items()}
UNCLAMPED = Guard(bound=np.inf)
# The defaults of a rule of `filters`.
_FILTER: dict[str, Any] = {
    "enabled": False,
    "agg_type": "token",
    "ratio_enabled": True,
    "ratio_low": 0.8,
    "ratio_high": 1.2,
    "diff_enabled": False,
    "diff_low": -0.2,
    "diff_high": 0.2,
}
# Bounds beyond all ratios, and beyond all sums of probability differences.
_WIDEST = {"ratio": (0.0, 1e9), "diff": (-1e9, 1e9)}


class Filter(Struct, frozen=True):
    """One rule of the list: bounds on the ratio and on the probability difference of a level."""

    level: str
    ratio: tuple[float, float] | None
    difference: tuple[float, float] | None

    @property
    def rejections(self) -> list[Rejection]:
        """Return the rejections that are equivalent to the rule."""
        tests = [(self.level, self.ratio), (DIFFERENCES[self.level], self.difference)]
        return [Rejection(name, bounds[1], bounds[0]) for name, bounds in tests if bounds]


def read(settings: Settings) -> Correction:
    """Return weights and all enabled filters; each filter uses the mask before all of them."""
    filters = filters_of(settings["filters"])
    weighting = None
    if settings["is_weight.enabled"]:
        level, upper = settings["is_weight.weight_type"], settings["is_weight.upper_bound"]
        bound = np.inf if upper is None else _number("is_weight.upper_bound", upper)
        if bound < 0.0:
            raise Refused(f"is_weight.upper_bound: {bound:g} is below 0", "give a ratio, or null")
        weighting = Weighting(level, bound, 0.0, "clip")
    return Correction(
        weighting=weighting,
        rejections=tuple(test for each in filters for test in each.rejections),
        guard=UNCLAMPED,
        logging=FILTERS if settings["filters"] else "",
    )


def filters_of(given: Any) -> list[Filter]:
    """Return the enabled rules of a list, including ROLL's defaults."""
    if not isinstance(given, (list, tuple)):
        raise Refused(f"filters: wanted a list, got {given!r}", "each rule is one item: - enabled")
    return [
        read
        for index, rule in enumerate(given)
        if (read := _filter(rule, f"filters[{index}]")) is not None
    ]


def _filter(given: Any, name: str) -> Filter | None:
    if not isinstance(given, Mapping):
        raise Refused(f"{name}: wanted a mapping, got {given!r}", f"it has {', '.join(_FILTER)}")
    if odd := [key for key in given if key not in _FILTER]:
        meant = did_you_mean(str(odd[0]), _FILTER)
        raise Refused(f"{name}: no setting `{odd[0]}`", f"{meant}it has {', '.join(_FILTER)}")
    rule = {**_FILTER, **given}
    of_level = Setting(name=f"{name}.agg_type", type="choice", choices=LEVELS)
    level = of_level.checked(rule["agg_type"])
    switches = {
        key: Setting(name=f"{name}.{key}", type="switch").checked(rule[key])
        for key in ("enabled", "ratio_enabled", "diff_enabled")
    }
    if not switches["enabled"]:
        return None
    bounds = {
        side: (_number(f"{name}.{side}_low", low), _number(f"{name}.{side}_high", high))
        for side in ("ratio", "diff")
        for low, high in [(rule[f"{side}_low"], rule[f"{side}_high"])]
    }
    return Filter(
        level,
        bounds["ratio"] if switches["ratio_enabled"] else None,
        bounds["diff"] if switches["diff_enabled"] else None,
    )


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refused(f"{name}: wanted a number, got {value!r}", "give a number")
    return float(value)


def ignored(config: Config) -> list[str]:
    """Report a list of filters in which none is enabled."""
    filters = config["filters"]
    if filters and isinstance(filters, list) and not filters_of(filters):
        return ["filters has no effect: none of its rules has enabled: true"]
    return []


def facts(correction: Correction, facts: Facts) -> Facts:
    """Return whether weights may be 0, and the filters that are equivalent to the rejections.

    A filter tests ratios (so does k1) or differences of probabilities.
    """
    weighting, tests = correction.weighting, correction.rejections
    odd = [one.statistic for one in tests if one.statistic not in (*LEVEL_OF_DIFFERENCE, *RATIOS)]
    return {
        "zeroes": weighting is not None and (weighting.outside == "zero" or bool(weighting.over)),
        "over": any(one.over for one in tests),
        "odd_rejection": next(iter(odd), ""),
        "filters": [_filter_of(one) for one in tests if one.statistic not in odd],
    }


def _filter_of(rejection: Rejection) -> dict[str, Any]:
    """Return the item of the list that is equivalent to a rejection."""
    lower = -math.inf if rejection.lower is None else rejection.lower
    name, upper = rejection.statistic, rejection.upper
    rule: dict[str, Any] = {"enabled": True}
    if name in LEVEL_OF_DIFFERENCE:
        side, rule["agg_type"] = "diff", LEVEL_OF_DIFFERENCE[name]
        rule |= {"ratio_enabled": False, "diff_enabled": True}
    else:
        side, rule["agg_type"] = "ratio", RATIOS[name]
        if name.endswith("k1"):  # k1 = -log_ratio: the bounds swap
            lower, upper = math.exp(-upper), math.exp(-lower)
    widest = _WIDEST[side]
    bounds = (max(lower, widest[0]), min(upper, widest[1]))
    low, high = (rounded(bound) if bound > 0 else bound for bound in bounds)
    return {**rule, f"{side}_low": low, f"{side}_high": high}


def file_findings(document: Mapping[str, Any], settings: Config) -> list[Finding]:
    """Report settings in the rest of a whole file that change or disable the correction."""
    found = []
    rules = settings["filters"] or []
    enabled = [rule for rule in rules if isinstance(rule, Mapping) and rule.get("enabled")]
    if document.get("loss_agg_mode") == "token-mean" and enabled:
        found.append(
            Finding(
                slug="filters-without-effect",
                severity="error",
                message="loss_agg_mode: token-mean sums the policy loss without the mask, so the "
                f"{len(enabled)} filters that are on change no loss: rejected tokens keep their "
                "pull",
                fix="take loss_agg_mode: seq-mean-token-mean, or is_weight in place of filters",
                evidence={"loss_agg_mode": "token-mean", "filters": len(enabled)},
            )
        )
    actor = document.get("actor_infer")
    arguments = actor.get("generating_args") if isinstance(actor, Mapping) else None
    recorded = not isinstance(arguments, Mapping) or arguments.get("logprobs", True)
    if (settings["is_weight.enabled"] is True or enabled) and recorded in (None, 0, False):
        found.append(
            Finding(
                slug="no-sampler-log-probs",
                severity="error",
                message="actor_infer.generating_args.logprobs is off: without log-probs of the "
                "sampler ROLL skips the correction, with a warning",
                fix="set actor_infer.generating_args.logprobs: 1",
            )
        )
    return found
