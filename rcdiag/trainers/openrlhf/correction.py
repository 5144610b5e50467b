"""OpenRLHF's correction of two generations: by type, and by level, mode and gate.

Sources: openrlhf 0.11.0 and 0.11.2, openrlhf/models/loss.py (`PolicyLoss`) and
openrlhf/cli/train_ppo_ray.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.guard import Guard
from rcdiag.corrections.quantities import SUM, LogRatio, Quantity, Reduction
from rcdiag.corrections.rejections import tokens_kept
from rcdiag.corrections.trainer_means import Batch
from rcdiag.results import Finding
from rcdiag.trainers.openrlhf.emit import gated, typed
from rcdiag.trainers.openrlhf.loss_in_config import loss_in
from rcdiag.trainers.openrlhf.losses import UPDATE
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trainer import (
    Claim,
    Config,
    ConfigFile,
    Metrics,
    Refused,
    Trainer,
    choice,
)

GUARD = Guard(bound=np.inf, epsilon=0.0)
DIVERGENCES = ("binary_kl", "tv")
RAW = Weighting("token", np.inf)  # each token's ratio as it is
_THRESHOLD, _LEVEL = "is_correction_threshold", "is_correction_level"
_BYPASS = Correction(mode="bypass", loss="gspo", guard=GUARD)


def read_gated(config: Config) -> Correction:
    """Read the settings of 0.11.2: a level, a mode and the statistic that is held to bounds."""
    level = choice({**config, _LEVEL: _level(config)}, _LEVEL, ("off", "token", "seq"))
    mode = choice(config, "is_correction_mode", ("mask", "clip"))
    gating = choice(config, "is_correction_gating", ("ratio", *DIVERGENCES))
    lower, upper = _bounds(config, one_is_upper=True)
    if mode == "clip" and (level == "seq" or gating != "ratio"):
        raise Refused(
            "is_correction_mode: clip goes with level token and gating ratio alone",
            "take mask, or level token with gating ratio",
        )
    if level == "off":
        return Correction(guard=GUARD)
    if gating != "ratio" and lower > 0.0:
        raise Refused(
            f"{_THRESHOLD}: {gating} has an upper bound alone, got {lower:g} {upper:g}",
            "give one number",
        )
    if config["policy_loss_type"] == "gspo":
        return _BYPASS
    if level == "token" and gating == "ratio":
        return _of_tokens(lower, upper, "clip" if mode == "clip" else "zero")
    if gating == "ratio":
        return _gate(Rejection("geometric", upper, lower))
    place = "token" if level == "token" else "seq_mean"
    return _gate(Rejection(f"{place}_{gating}", upper, lower))


def _level(config: Config) -> Any:
    """Return the level; YAML takes the word off for false."""
    return "off" if config[_LEVEL] is False else config[_LEVEL]


def read_typed(config: Config) -> Correction:
    """Read the settings of 0.11.0: a type."""
    kind = choice(config, "is_correction_type", ("tis", "icepop", "seq-mask-tis"))
    lower, upper = _bounds(config, one_is_upper=False)
    if not config["is_correction_enable"]:
        return Correction(guard=GUARD)
    if config["policy_loss_type"] == "gspo":
        return _BYPASS
    if kind == "seq-mask-tis":
        return _gate(Rejection("geometric", upper, lower))
    return _of_tokens(lower, upper, "clip" if kind == "tis" else "zero")


def _of_tokens(lower: float, upper: float, outside: Any) -> Correction:
    return Correction(Weighting("token", upper, lower, outside), guard=GUARD)


def _gate(gate: Rejection) -> Correction:
    """Return raw ratios that are 0 where the gate is shut; nothing is rejected."""
    return Correction(RAW, zeroing=(gate,), guard=GUARD)


def _bounds(config: Config, *, one_is_upper: bool) -> tuple[float, float]:
    """Read LOW HIGH; one number is the upper bound where that is taken."""
    given = config[_THRESHOLD]
    values = list(given) if isinstance(given, (list, tuple)) else [given]
    if one_is_upper and len(values) == 1:
        values = [0.0, *values]
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in values)
    if len(values) != 2 or not numbers:
        expected = "LOW HIGH, or HIGH" if one_is_upper else "LOW HIGH"
        raise Refused(f"{_THRESHOLD}: wanted {expected}, got {given!r}", "give numbers")
    return float(values[0]), float(values[1])


class Outside(Struct, frozen=True):
    """1 where no test of the tokens holds: a statistic out of its bounds, or no number."""

    tests: tuple[Rejection, ...]

    keeps: ClassVar[tuple[Reduction, ...]] = SUM

    def of(self, tokens: Tokens) -> Array:
        return (~tokens_kept(tokens, self.tests)).astype(np.float64)


def _gate_of(correction: Correction) -> Rejection | None:
    """Return the statistic with the bounds that a correction holds it to."""
    if correction.zeroing:
        return correction.zeroing[0]
    weighting = correction.weighting
    return None if weighting is None else Rejection("token", weighting.upper, weighting.lower)


def quantities(correction: Correction) -> list[Quantity]:
    """Return the quantities of tokens that the metrics read."""
    gate = _gate_of(correction)
    return [] if gate is None else [LogRatio(), Outside((gate,))]


def metrics_of_types(batch: Batch, correction: Correction) -> Metrics:
    """Return what 0.11.0 logs, where it corrects."""
    if correction.weighting is None:
        return {}
    rows = batch.rows
    return {"vllm_kl": float(-rows.columns[LogRatio()].sum.sum() / rows.tokens)}


def metrics_of_gates(batch: Batch, correction: Correction) -> Metrics:
    """Return what 0.11.2 logs, where it corrects; a sequence without a token is outside."""
    logged, gate = metrics_of_types(batch, correction), _gate_of(correction)
    if gate is None:
        return logged
    rows = batch.rows
    outside = rows.columns[Outside((gate,))].sum
    if gate.of_tokens:
        return logged | {"is_filter_ratio": float(outside.sum() / rows.tokens)}
    sequences = batch.padded((outside > 0).astype(np.float64), fill=1.0)
    return logged | {"is_filter_ratio": float(sequences.mean())}


def traps(config: Config) -> list[Finding]:
    """Tell where the correction does not do what its name says."""
    on = config.get("is_correction_enable") or config.get(_LEVEL, "off") not in ("off", False)
    if config["policy_loss_type"] != "gspo" or not on:
        return []
    return [
        Finding(
            slug="gspo-takes-the-rollout",
            severity="warning",
            message="with --actor.policy_loss_type gspo the correction weighs nothing: the ratio "
            "of the loss becomes that of current to rollout, no bound is read and nothing logged",
            fix="take ppo for a bounded correction",
            evidence={"policy_loss_type": "gspo"},
        )
    ]


def _ignored_by_name(name: str) -> Callable[[Config], list[str]]:
    """Return what lists settings without effect while the correction is off."""

    def ignored(config: Config) -> list[str]:
        if config[name] not in (False, "off"):
            return []
        changed = [
            other
            for other, default in DEFAULTS[name].items()
            if other not in (name, "policy_loss_type") and config[other] != default
        ]
        return [f"{other} has no effect: the correction is off" for other in changed]

    return ignored


_COMMON: dict[str, Any] = {_THRESHOLD: [0.5, 5.0], "policy_loss_type": "ppo"}
_GATED: dict[str, Any] = {
    "is_correction_level": "off",
    "is_correction_mode": "mask",
    "is_correction_gating": "ratio",
    **_COMMON,
}
_TYPED: dict[str, Any] = {"is_correction_enable": False, "is_correction_type": "tis", **_COMMON}
DEFAULTS = {"is_correction_level": _GATED, "is_correction_enable": _TYPED}
_PLACES = {
    **{
        name: (f"algo.advantage.{name}", name)
        for name in (*_GATED, *_TYPED)
        if name != "policy_loss_type"
    },
    "policy_loss_type": ("actor.policy_loss_type",),
}
_OLD = ("is_correction_enable", "is_correction_type")
_NEW = ("is_correction_level", "is_correction_mode", "is_correction_gating")


def _claim_of(own: tuple[str, ...], others: tuple[str, ...]) -> Callable[..., Claim | None]:
    """Return the claim of a generation by names that the other one does not have."""

    def claim(settings: Config, document: Document) -> Claim | None:
        if any(document.has(name) for name in own):
            return Claim(1.0)
        if any(document.has(name) for name in others):
            return None
        if _THRESHOLD in settings:
            return Claim(0.8 if own is _NEW else 0.7, doubt="both generations have its settings")
        named = document.has("actor.policy_loss_type", "algo.advantage.estimator")
        if named or document.mentions("openrlhf.cli.train_ppo"):
            return Claim(0.4 if own is _NEW else 0.3)
        return None

    return claim


_NEWEST = Trainer(
    name="openrlhf-0.11.2",
    family="openrlhf",
    package="rcdiag.trainers.openrlhf",
    newest=True,
    settings=_GATED,
    presets={
        "off": {},
        "token_clip": {_LEVEL: "token", "is_correction_mode": "clip"},
        "token_mask": {_LEVEL: "token", "is_correction_mode": "mask"},
        "seq_mask": {_LEVEL: "seq", "is_correction_mode": "mask"},
    },
    read=read_gated,
    ignored=_ignored_by_name("is_correction_level"),
    traps=traps,
    quantities=quantities,
    metrics=metrics_of_gates,
    update=UPDATE,
    config=ConfigFile(
        places={name: _PLACES[name] for name in _GATED},
        form="flags",
        claim=_claim_of(_NEW, _OLD),
        loss=loss_in,
        write=gated,
        needs=("flags of openrlhf.cli.train_ppo_ray",),
    ),
)
GENERATIONS = (
    replace(
        _NEWEST,
        name="openrlhf-0.11.0",
        newest=False,
        settings=_TYPED,
        presets={
            "off": {},
            # By the names that 0.11.2 has for the same.
            **{
                name: {"is_correction_enable": True, "is_correction_type": kind}
                for name, kind in (
                    ("token_clip", "tis"),
                    ("token_mask", "icepop"),
                    ("seq_mask", "seq-mask-tis"),
                )
            },
        },
        read=read_typed,
        ignored=_ignored_by_name("is_correction_enable"),
        metrics=metrics_of_types,
        config=replace(
            _NEWEST.config,
            places={name: _PLACES[name] for name in _TYPED},
            claim=_claim_of(_OLD, _NEW),
            write=typed,
        ),
    ),
    _NEWEST,
)
