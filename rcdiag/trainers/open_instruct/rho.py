"""open-instruct's correction: rho = old / rollout, zeroed outside its mask, then clamped.

A sequence is a row here; in open-instruct it is a pack of several responses. Sources: open-instruct
commit e6c3044a (2026-08-20), open_instruct/grpo_utils.py (`GRPOExperimentConfig`,
`compute_rho_correction`, `mask_logprobs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rcdiag.corrections.arithmetic import Array, Tokens
from rcdiag.corrections.correction import Correction, Level, Rejection, Weighting
from rcdiag.corrections.guard import Guard
from rcdiag.corrections.statistics import STATISTICS, Statistic
from rcdiag.results import Finding
from rcdiag.trainers.open_instruct.emit import OF_TV, flags
from rcdiag.trainers.open_instruct.loss_in_config import loss_in
from rcdiag.trainers.open_instruct.losses import UPDATE
from rcdiag.trainers.open_instruct.metrics import metrics, quantities
from rcdiag.trainers.settings_document import MISSING, Document
from rcdiag.trainers.trainer import Claim, Config, ConfigFile, Refused, Trainer, switch

INVALID_LOGPROB = 1.0  # in place of a log-prob that is NaN
GUARD = Guard(bound=10.0, before_sums=True, epsilon=0.0, nan_log_prob=INVALID_LOGPROB)
_SETTINGS: dict[str, Any] = {
    "use_rho_correction": True,
    "rho_clamp_lower_bound": 0.0,
    "rho_clamp_upper_bound": 2.0,
    "rho_mask_lower_bound": 0.0,
    "rho_mask_upper_bound": 0.0,
    "rho_mask_sequence_level": False,
    "rho_mask_tv_divergence": False,
    "use_vllm_logprobs": False,
}
_BOUNDS = tuple(name for name in _SETTINGS if name.endswith("_bound"))
_SWITCHES = tuple(name for name in _SETTINGS if name not in _BOUNDS)


def _of_rising(of_others: float) -> Any:
    """Return a statistic of tokens: the sequence's mean |ratio - 1| where sign(d) A > 0."""

    def of(tokens: Tokens) -> Array:
        distance = np.abs(tokens.ratio - tokens.ratio.dtype.type(1.0))
        means = tokens.on_tokens(tokens.row_mean(distance))
        rises = np.sign(tokens.log_ratio) * tokens.advantage > 0
        return np.where(rises, means, of_others)

    return of


_RISING = "mean |ratio - 1| of the sequence, at tokens with log_ratio x advantage above 0"
_FILE = "open-instruct commit e6c3044a, open_instruct/grpo_utils.py, compute_rho_correction"
STATISTICS.ship(
    Statistic(
        name=name,
        formula=f"{_RISING}; {of_others:g} at others",
        unit="ratio",
        of=_of_rising(of_others),
        needs_advantages=True,
        source=_FILE,
    )
    for name, of_others in (("rising_tv", -np.inf), ("rising_tv_lower", np.inf))
)


def read(config: Config) -> Correction:
    """Read rho's clamp as that of weights, and its mask as weights of 0."""
    switches = {name: switch(config, name) for name in _SWITCHES}
    bounds = {name: _bound(config, name) for name in _BOUNDS}
    if switches["use_vllm_logprobs"] and switches["use_rho_correction"]:
        raise Refused(
            "use_vllm_logprobs and use_rho_correction are both on",
            "the sampler's log-probs are the old ones then, and rho is 1; turn one off",
        )
    if not switches["use_rho_correction"]:
        return Correction(
            guard=GUARD, mode="bypass" if switches["use_vllm_logprobs"] else "decoupled"
        )
    _check(bounds)
    level: Level = "geometric" if switches["rho_mask_sequence_level"] else "token"
    low, high = bounds["rho_clamp_lower_bound"], bounds["rho_clamp_upper_bound"]
    return Correction(
        weighting=Weighting(level, high or np.inf, low, "clip"),
        zeroing=_mask(bounds, level, tv=switches["rho_mask_tv_divergence"]),
        guard=GUARD,
    )


def _mask(bounds: Mapping[str, float], level: str, *, tv: bool) -> tuple[Rejection, ...]:
    """Return what is zeroed below a lower bound, and above an upper one; 0 is no bound."""
    low, high = bounds["rho_mask_lower_bound"], bounds["rho_mask_upper_bound"]
    below, above = OF_TV if tv else (level, level)
    zeroed = [Rejection(below, np.inf, low)] if low > 0 else []
    return tuple([*zeroed, Rejection(above, high)] if high > 0 else zeroed)


def _bound(config: Config, name: str) -> float:
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        raise Refused(f"{name}: wanted a number, got {value!r}", "0 is no bound")
    return float(max(value, 0.0))  # open-instruct asks whether it is above 0


def _check(bounds: Mapping[str, float]) -> None:
    """Refuse lower bounds of 1 or more and upper bounds of 1 or less, as open-instruct does."""
    for name, value in bounds.items():
        lower = "lower" in name
        if value > 0 and (value >= 1.0 if lower else value <= 1.0):
            side = "below 1" if lower else "above 1"
            raise Refused(f"{name}: {value:g} is not {side}", "0 is no bound")


def ignored(config: Config) -> list[str]:
    """List settings that change nothing without the correction, or without bounds."""
    names = [name for name in _SETTINGS if name.startswith("rho_")]
    changed = [name for name in names if config[name] != _SETTINGS[name]]
    if not config["use_rho_correction"]:
        return [f"{name} has no effect without use_rho_correction" for name in changed]
    bounded = config["rho_mask_lower_bound"] or config["rho_mask_upper_bound"]
    if config["rho_mask_tv_divergence"] and not bounded:
        return ["rho_mask_tv_divergence has no effect without a bound of the mask"]
    return []


def _complete(settings: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Read the flags `--no_NAME`, which turn a switch off."""
    off = {name: False for name in _SWITCHES if document.find(f"no_{name}") is True}
    return {**settings, **off}, []


def _claim(config: Config, document: Document) -> Claim | None:
    """Claim names that no other trainer has, or a script that runs its GRPO."""
    own = [name for name in config if name != "use_vllm_logprobs"]
    if own or document.find("no_use_rho_correction") is not MISSING:
        return Claim(1.0)
    return Claim(0.9) if document.mentions("open_instruct/grpo") else None


def traps(settings: Config) -> list[Finding]:
    """Report what open-instruct does with these settings that their names do not say."""
    if settings["use_rho_correction"] is not True:
        return []
    found = []
    low, high = settings["rho_mask_lower_bound"], settings["rho_mask_upper_bound"]
    if settings["rho_mask_tv_divergence"] and isinstance(low, (int, float)) and low > 0:
        found.append(_lower_tv(low))
    if settings["rho_mask_tv_divergence"] and isinstance(high, (int, float)) and high > 1:
        found.append(_upper_tv(high))
    if settings["rho_mask_sequence_level"] is True:
        found.append(_sequence_is_pack())
    return found


def _lower_tv(low: float) -> Finding:
    return Finding(
        slug="lower-tv-bound-drops-the-nearest",
        severity="error",
        message=f"rho_mask_lower_bound {low:g} with rho_mask_tv_divergence drops tokens of the "
        f"sequences whose mean |ratio - 1| is below {low:g}: those nearest to the sampler",
        fix="set rho_mask_lower_bound 0 with rho_mask_tv_divergence",
        evidence={"rho_mask_lower_bound": low},
    )


def _upper_tv(high: float) -> Finding:
    return Finding(
        slug="tv-bound-above-one",
        severity="warning",
        message=f"rho_mask_upper_bound {high:g} is held against a mean |ratio - 1|, and "
        "open-instruct refuses bounds of 1 or less: a usual limit, such as 0.05, cannot be set",
        fix="mask by the ratio instead: rho_mask_tv_divergence false",
        evidence={"rho_mask_upper_bound": high},
    )


def _sequence_is_pack() -> Finding:
    return Finding(
        slug="sequence-is-a-pack",
        severity="note",
        message="rho_mask_sequence_level takes the mean over a row of the batch, and in "
        "open-instruct a row is a pack of several responses; here it is one response",
        fix="compare with a run in which every pack holds one response",
    )


GENERATIONS = (
    Trainer(
        name="open-instruct",
        family="open-instruct",
        package="rcdiag.trainers.open_instruct",
        newest=True,
        settings=_SETTINGS,
        presets={
            "default": {},
            "sequence_level": {"rho_mask_sequence_level": True},
            "off": {"use_rho_correction": False},
            "vllm_logprobs": {"use_rho_correction": False, "use_vllm_logprobs": True},
        },
        read=read,
        ignored=ignored,
        quantities=quantities,
        metrics=metrics,
        update=UPDATE,
        traps=traps,
        config=ConfigFile(
            places={name: (name,) for name in _SETTINGS},
            form="flags",
            claim=_claim,
            loss=loss_in,
            complete=_complete,
            write=flags,
            needs=("flags of grpo_fast.py or grpo.py",),
        ),
    ),
)
