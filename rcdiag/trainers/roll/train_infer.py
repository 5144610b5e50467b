"""ROLL's `train_infer_correction`: weights with an upper bound, and a list of filters.

Sources: ROLL commit 8eb27cc2 (2026-08-19), roll/configs/base_config.py
(`TrainInferCorrectionConfig`) and roll/utils/train_infer_corrections.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.guard import Guard
from rcdiag.errors import did_you_mean
from rcdiag.results import Finding
from rcdiag.trainers.roll.emit import block
from rcdiag.trainers.roll.loss_in_config import loss_in
from rcdiag.trainers.roll.losses import UPDATE
from rcdiag.trainers.roll.metrics import FILTERS, metrics, quantities
from rcdiag.trainers.settings_document import MISSING, Document
from rcdiag.trainers.trainer import Claim, Config, ConfigFile, Refused, Trainer, choice, switch

LEVELS = ("token", "segment", "geometric", "sequence")
# The difference of probabilities of a token, its mean over a run or a row, and its sum.
DIFFERENCES = {
    "token": "token_prob_change",
    "segment": "segment_prob_change",
    "geometric": "seq_mean_prob_change",
    "sequence": "seq_sum_prob_change",
}
UNCLAMPED = Guard(bound=np.inf)
_SETTINGS: dict[str, Any] = {
    "is_weight.enabled": False,
    "is_weight.weight_type": "token",
    "is_weight.upper_bound": 1.2,
    "filters": [],
}
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


class Filter(Struct, frozen=True):
    """One rule of the list: the ratio and the difference of a level stay within bounds."""

    level: str
    ratio: tuple[float, float] | None
    difference: tuple[float, float] | None

    @property
    def rejections(self) -> list[Rejection]:
        """Return the rejections that the rule is."""
        tests = [(self.level, self.ratio), (DIFFERENCES[self.level], self.difference)]
        return [Rejection(name, bounds[1], bounds[0]) for name, bounds in tests if bounds]


def read(config: Config) -> Correction:
    """Read weights and all filters that are on; each looks at the mask before any of them."""
    filters = filters_of(config["filters"])
    return Correction(
        weighting=_weighting(config) if switch(config, "is_weight.enabled") else None,
        rejections=tuple(test for each in filters for test in each.rejections),
        guard=UNCLAMPED,
        logging=FILTERS if config["filters"] else "",
    )


def _weighting(config: Config) -> Weighting:
    level = choice(config, "is_weight.weight_type", LEVELS)
    upper = config["is_weight.upper_bound"]
    bound = np.inf if upper is None else _number("is_weight.upper_bound", upper)
    if bound < 0.0:
        raise Refused(f"is_weight.upper_bound: {bound:g} is below 0", "give a ratio, or null")
    return Weighting(level, bound, 0.0, "clip")


def filters_of(given: Any) -> list[Filter]:
    """Read the rules of a list that are enabled, ROLL's defaults filled in."""
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
    level = choice({f"{name}.agg_type": rule["agg_type"]}, f"{name}.agg_type", LEVELS)
    switches = {
        key: switch({f"{name}.{key}": rule[key]}, f"{name}.{key}")
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
    """List settings that ROLL takes and does nothing with."""
    sentences = []
    if not config["is_weight.enabled"]:
        names = ("is_weight.weight_type", "is_weight.upper_bound")
        changed = [name for name in names if config[name] != _SETTINGS[name]]
        sentences += [f"{name} has no effect without is_weight.enabled" for name in changed]
    filters = config["filters"]
    if filters and isinstance(filters, list) and not filters_of(filters):
        sentences.append("filters has no effect: none of its rules has enabled: true")
    return sentences


_PLACE = "train_infer_correction"


def _claim(config: Config, document: Document) -> Claim | None:
    """Claim the block's name, the block itself, or the two roles of a whole file."""
    if document.has(_PLACE) or "is_weight" in document.tree:
        return Claim(1.0)
    roles = all(document.find(name) is not MISSING for name in ("actor_train", "actor_infer"))
    return Claim(0.8) if roles else None


def findings(document: Mapping[str, Any], settings: Config) -> list[Finding]:
    """Report what the rest of a whole file makes of the correction."""
    found = []
    mode = document.get("loss_agg_mode")
    enabled = [
        rule
        for rule in settings["filters"] or []
        if isinstance(rule, Mapping) and rule.get("enabled")
    ]
    if mode == "token-mean" and enabled:
        found.append(_filters_without_effect(len(enabled)))
    weighs = settings["is_weight.enabled"] is True
    if (weighs or enabled) and _without_sampler_log_probs(document):
        found.append(_no_log_probs())
    if _variant(document) == "tis" and not weighs:
        found.append(_another_tis())
    return found


def _variant(document: Mapping[str, Any]) -> Any:
    actor = document.get("actor_train")
    return actor.get("pg_variant") if isinstance(actor, Mapping) else None


def _without_sampler_log_probs(document: Mapping[str, Any]) -> bool:
    """Tell whether a whole file asks the sampler for no log-probs in so many words."""
    actor = document.get("actor_infer")
    arguments = actor.get("generating_args") if isinstance(actor, Mapping) else None
    return isinstance(arguments, Mapping) and arguments.get("logprobs", True) in (None, 0, False)


def _filters_without_effect(count: int) -> Finding:
    return Finding(
        slug="filters-without-effect",
        severity="error",
        message=f"loss_agg_mode: token-mean sums the policy loss without the mask, so the {count} "
        "filters that are on change no loss: rejected tokens keep their pull",
        fix="take loss_agg_mode: seq-mean-token-mean, or is_weight in place of filters",
        evidence={"loss_agg_mode": "token-mean", "filters": count},
    )


def _no_log_probs() -> Finding:
    return Finding(
        slug="no-sampler-log-probs",
        severity="error",
        message="actor_infer.generating_args.logprobs is off: without log-probs of the sampler "
        "ROLL skips the correction, with a warning",
        fix="set actor_infer.generating_args.logprobs: 1",
    )


def _another_tis() -> Finding:
    return Finding(
        slug="tis-of-the-ppo-ratio",
        severity="warning",
        message="pg_variant: tis truncates the ratio of current and old policy; nothing corrects "
        "the mismatch of sampler and trainer",
        fix="set train_infer_correction.is_weight.enabled: true",
    )


def _weights(**changed: Any) -> dict[str, Any]:
    return {"is_weight.enabled": True, **{f"is_weight.{key}": one for key, one in changed.items()}}


def _one_filter(level: str, **changed: Any) -> dict[str, Any]:
    return {"filters": [{"enabled": True, "agg_type": level, **changed}]}


_PRESETS: dict[str, Config] = {
    "default": {},
    **{
        f"is_weight_{level}": _weights(**({} if level == "token" else {"weight_type": level}))
        for level in LEVELS
    },
    **{f"filter_ratio_{level}": _one_filter(level) for level in LEVELS},
    **{
        f"filter_diff_{level}": _one_filter(level, ratio_enabled=False, diff_enabled=True)
        for level in LEVELS
    },
}

GENERATIONS = (
    Trainer(
        name="roll",
        family="roll",
        package="rcdiag.trainers.roll",
        newest=True,
        settings=_SETTINGS,
        presets=_PRESETS,
        read=read,
        rejects_by=tuple(DIFFERENCES.values()),
        ignored=ignored,
        quantities=quantities,
        metrics=metrics,
        update=UPDATE,
        config=ConfigFile(
            path=(_PLACE,),
            places={name: (f"{_PLACE}.{name}", name) for name in _SETTINGS},
            claim=_claim,
            loss=loss_in,
            findings=findings,
            write=block,
            needs=("train_infer_correction of the pipeline's YAML",),
        ),
    ),
)
