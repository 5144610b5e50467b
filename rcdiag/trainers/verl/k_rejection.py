"""verl 0.7.1, 0.8.0 and 0.9 reject by k1, k2, k3 in eleven ways; IcePop is from 0.8.0 on.

Sources: packages verl 0.7.1, 0.8.0 and 0.9.1, `rollout_corr_helper.py`, `config/algorithm.py`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from rcdiag.corrections.apply import outcome
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.quantities import Quantity
from rcdiag.corrections.trainer_means import Batch
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trainer import (
    Claim,
    Config,
    ConfigFile,
    Metrics,
    Refused,
    Trainer,
    choice,
    positive,
)
from rcdiag.trainers.verl.emit import by_k
from rcdiag.trainers.verl.family import FAMILY, NEEDS, PACKAGE, PATH, UNSET
from rcdiag.trainers.verl.ignored import ignored
from rcdiag.trainers.verl.loss_in_config import loss_in
from rcdiag.trainers.verl.losses import UPDATE_071, UPDATE_09
from rcdiag.trainers.verl.metrics import (
    ALWAYS,
    Statistics,
    k_metrics,
    k_quantities,
    masked_fractions,
    normaliser,
    off_policy,
    out_of_bounds,
    weight_metrics,
    weight_quantities,
)
from rcdiag.trainers.verl.whole_config import is_whole, whole_config_findings

OPTIONS = (
    *(f"token_k{k}" for k in (1, 2, 3)),
    *(f"seq_sum_k{k}" for k in (1, 2, 3)),
    *(f"seq_mean_k{k}" for k in (1, 2, 3)),
    *(f"seq_max_k{k}" for k in (2, 3)),
)


def read(config: Config, *, icepop: bool, ordered: bool) -> Correction:
    """Read the canonical correction. `ordered` refuses a lower bound above the upper one."""
    level = choice(config, "rollout_is", (None, "token", "sequence"))
    weighting = None
    if level is not None and config["rollout_is_threshold"] is not None:
        weighting = _weighting(level, config, icepop=icepop)
    loss = choice(config, "loss_type", LOSS_TYPES)
    return Correction(
        weighting=weighting,
        rejections=_rejections(config, ordered=ordered),
        batch_normalize=bool(config["rollout_is_batch_normalize"]),
        weights_applied=not config["bypass_mode"] or loss == "reinforce",
        mode="bypass" if config["bypass_mode"] else "decoupled",
        loss=loss,
    )


def _weighting(level: Any, config: Config, *, icepop: bool) -> Weighting:
    """Read weights: a number truncates; `lower_upper` as text is IcePop, from 0.8.0 on."""
    threshold = config["rollout_is_threshold"]
    if not isinstance(threshold, str):
        return Weighting(level, positive(config, "rollout_is_threshold"))
    if not icepop:
        raise Refused(
            f"rollout_is_threshold: {threshold!r} is text; this generation knows no IcePop",
            "a number, or verl-0.8.0 and later",
        )
    lower_text, bar, upper_text = threshold.partition("_")
    try:
        upper = float(upper_text if bar else lower_text)
        lower = float(lower_text) if bar else None
    except ValueError as error:
        raise Refused(
            f"rollout_is_threshold: {threshold!r} is not `upper` or `lower_upper`", '"0.5_5.0"'
        ) from error
    if upper <= 0 or (lower is not None and not 0 < lower <= upper):
        raise Refused(f"rollout_is_threshold: {threshold!r} wants 0 < lower <= upper", '"0.5_5.0"')
    return Weighting(level, upper, lower, "truncate" if lower is None else "zero")


def _rejections(config: Config, *, ordered: bool) -> tuple[Rejection, ...]:
    names = config["rollout_rs"]
    if names is None:
        return ()
    options = list(dict.fromkeys(part.strip() for part in str(names).split(",") if part.strip()))
    for option in options:
        if option not in OPTIONS:
            raise Refused(
                f"rollout_rs: {option!r} is not an option of this generation",
                f"one or more of {', '.join(OPTIONS)}",
            )
    bounds = _bounds(config["rollout_rs_threshold"], options)
    return tuple(
        _rejection(option, text, ordered=ordered)
        for option, text in zip(options, bounds, strict=True)
    )


def _bounds(threshold: Any, options: list[str]) -> list[str]:
    if threshold is None or not options:
        raise Refused("rollout_rs_threshold: not set, and verl stops without it", '"0.5_2.0"')
    parts = [part.strip() for part in str(threshold).split(",") if part.strip()]
    if len(parts) not in (1, len(options)):
        raise Refused(
            f"rollout_rs_threshold: {len(parts)} thresholds for {len(options)} options",
            "one for all, or one for each",
        )
    return parts if len(parts) == len(options) else parts * len(options)


def _rejection(option: str, text: str, *, ordered: bool) -> Rejection:
    """Read bounds in nats: k1 bounds are ratios to the user; verl holds -log_ratio against them."""
    is_k1 = option.endswith("k1")
    lower_text, bar, upper_text = text.partition("_")
    if bar and not is_k1:
        raise Refused(
            f"rollout_rs_threshold: {text!r} for {option}, which has an upper bound only", '"0.01"'
        )
    try:
        upper = float(upper_text if bar else lower_text)
        lower = float(lower_text) if bar else None
    except ValueError as error:
        raise Refused(
            f"rollout_rs_threshold: {text!r} for {option} is no number", '"0.5_2.0"'
        ) from error
    if upper <= 0:
        raise Refused(f"rollout_rs_threshold: {text!r} for {option} is not above 0", '"0.5_2.0"')
    if not is_k1:
        return Rejection(option, upper)
    lower = 1.0 / upper if lower is None else lower
    if lower <= 0:
        raise Refused(f"rollout_rs_threshold: {text!r} for {option} is not above 0", '"0.5_2.0"')
    if ordered and lower > upper:
        raise Refused(
            f"rollout_rs_threshold: {text!r} for {option} has its lower bound above its upper one",
            "a single number u means [1/u, u], so it must be 1 or more",
        )
    return Rejection(option, float(np.log(upper)), float(np.log(lower)))


def quantities(correction: Correction, *, of: Statistics) -> list[Quantity]:
    """Return the quantities of tokens that `metrics` reads."""
    needed = list(ALWAYS)
    if correction.weighting is not None:
        needed += weight_quantities(correction.weighting, of)
    for rejection in correction.rejections:
        needed += k_quantities(rejection)
    return needed


def metrics(
    batch: Batch, correction: Correction, *, of: Statistics, fractions_of: Statistics
) -> Metrics:
    """Return all logged numbers under their keys with prefix."""
    logged: Metrics = {}
    weighting = correction.weighting
    if weighting is not None:
        logged |= weight_metrics(batch, weighting, "rollout_is", of=of, fractions_of=fractions_of)
        if weighting.outside == "zero":
            logged["rollout_is_oob_ratio"] = out_of_bounds(batch, weighting)
        if correction.batch_normalize:
            logged["rollout_is_batch_norm_factor"] = normaliser(batch, correction)
    for rejection in correction.rejections:
        logged |= k_metrics(batch, rejection)
    if correction.rejections:
        alone = Correction(rejections=correction.rejections)
        logged |= masked_fractions(batch, outcome(batch.rows, alone).kept)
    logged |= off_policy(batch)
    return {f"rollout_corr/{name}": value for name, value in logged.items()}


_SETTINGS: dict[str, Any] = {
    "rollout_is": "sequence",
    "rollout_is_threshold": 2.0,
    "rollout_rs": None,
    "rollout_rs_threshold": None,
    "bypass_mode": False,
    "loss_type": "ppo_clip",
    "rollout_is_batch_normalize": False,
}
_OFF = {"rollout_is": None}
_TOKEN, _SEQ = {"rollout_is": "token"}, {"rollout_is": "sequence"}
_ICEPOP = {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}
_GEO = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}
_K3 = {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01}
_BYPASS = {"bypass_mode": True}
_PG = {**_BYPASS, "loss_type": "reinforce"}

_PRESETS_071: dict[str, Config] = {
    "decoupled_token_is": _TOKEN,
    "decoupled_seq_is": _SEQ,
    "decoupled_seq_is_rs": {
        **_SEQ,
        "rollout_rs": "seq_sum_k1",
        "rollout_rs_threshold": "0.5_2.0",
    },
    "decoupled_geo_rs": {**_OFF, **_GEO},
    "decoupled_geo_rs_seq_tis": {**_SEQ, **_GEO},
    "decoupled_geo_rs_token_tis": {**_TOKEN, **_GEO},
    "decoupled_k3_rs": {**_OFF, **_K3},
    "decoupled_k3_rs_seq_tis": {**_SEQ, **_K3},
    "decoupled_k3_rs_token_tis": {**_TOKEN, **_K3},
    "bypass_ppo_clip": {**_OFF, **_BYPASS},
    "bypass_ppo_clip_geo_rs": {**_OFF, **_GEO, **_BYPASS},
    "bypass_ppo_clip_k3_rs": {**_OFF, **_K3, **_BYPASS},
    "bypass_pg_is": {**_SEQ, **_PG},
    "bypass_pg_geo_rs": {**_OFF, **_GEO, **_PG},
    "bypass_pg_geo_rs_seq_tis": {**_SEQ, **_GEO, **_PG},
    "bypass_pg_geo_rs_token_tis": {**_TOKEN, **_GEO, **_PG},
    "disabled": _OFF,
}
_PRESETS: dict[str, Config] = {
    **_PRESETS_071,
    "decoupled_token_icepop": _ICEPOP,
    "bypass_pg_token_icepop": {**_ICEPOP, **_PG},
}


LOSS_TYPES = ("ppo_clip", "reinforce")


def _claim(config: Config, document: Document) -> Claim | None:
    """Claim settings that all generations from 0.7.1 on have, and a run that sets none."""
    own = {name for name in _SETTINGS if name in config and name != "loss_type"}
    if not own and config.get("loss_type") not in LOSS_TYPES:  # TRL has another loss_type
        doubt = "generations from 0.6.0 on have such files"
        return Claim(0.45, doubt) if is_whole(document) else None
    if isinstance(config.get("rollout_is_threshold"), str):
        return Claim(0.5, "verl-0.8.0 has the same settings")
    options = str(config.get("rollout_rs") or "").split(",")
    if any(option.strip() in OPTIONS for option in options):
        return Claim(0.5, "verl-0.7.1 and 0.8.0 have the same settings")
    return Claim(0.5, "generations from 0.6.1 on have these settings")


def _config(version: str, *, icepop: bool) -> ConfigFile:
    return ConfigFile(
        path=PATH,
        whole=is_whole,
        loss=loss_in,
        findings=partial(whole_config_findings, version=version),
        write=partial(by_k, icepop=icepop),
        needs=NEEDS,
        hydra=True,
    )


GENERATIONS = (
    Trainer(
        name="verl-0.7.1",
        family=FAMILY,
        package=PACKAGE,
        settings=_SETTINGS,
        unset=UNSET,
        presets=_PRESETS_071,
        read=partial(read, icepop=False, ordered=False),
        rejects_by=OPTIONS,
        ignored=ignored,
        quantities=partial(quantities, of="raw"),
        metrics=partial(metrics, of="raw", fractions_of="raw"),
        normaliser=normaliser,
        update=UPDATE_071,
        config=_config("0.7.1", icepop=False),
    ),
    Trainer(
        name="verl-0.8.0",
        family=FAMILY,
        package=PACKAGE,
        settings=_SETTINGS,
        unset=UNSET,
        presets=_PRESETS,
        read=partial(read, icepop=True, ordered=False),
        rejects_by=OPTIONS,
        ignored=ignored,
        quantities=partial(quantities, of="applied"),
        metrics=partial(metrics, of="applied", fractions_of="applied"),
        normaliser=normaliser,
        update=UPDATE_071,
        config=_config("0.8.0", icepop=True),
    ),
    Trainer(
        name="verl-0.9",
        family=FAMILY,
        package=PACKAGE,
        newest=True,
        settings=_SETTINGS,
        unset=UNSET,
        presets=_PRESETS,
        read=partial(read, icepop=True, ordered=True),
        rejects_by=OPTIONS,
        ignored=ignored,
        quantities=partial(quantities, of="applied"),
        metrics=partial(metrics, of="applied", fractions_of="raw"),
        normaliser=normaliser,
        update=UPDATE_09,
        config=replace(_config("0.9", icepop=True), claim=_claim),
    ),
)
