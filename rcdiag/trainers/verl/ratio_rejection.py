"""verl 0.6.1, its next development version and 0.7.0 reject by ratios and a veto.

Sources: packages verl 0.6.1 and 0.7.0, `rollout_corr_helper.py` and `config/algorithm.py`; verl's
document of 2025-12-03.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import replace

from rcdiag.corrections.apply import outcome, veto_quantity, vetoed_rows
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
    optional_number,
    positive,
)
from rcdiag.trainers.verl.emit import by_ratios
from rcdiag.trainers.verl.family import FAMILY, NEEDS, PACKAGE, PATH, UNSET
from rcdiag.trainers.verl.ignored import ignored
from rcdiag.trainers.verl.loss_in_config import loss_in
from rcdiag.trainers.verl.losses import UPDATE_061, UPDATE_070, UPDATE_20251203
from rcdiag.trainers.verl.metrics import (
    ALWAYS,
    masked_fractions,
    normaliser,
    off_policy,
    weight_metrics,
    weight_quantities,
)
from rcdiag.trainers.verl.whole_config import is_whole, whole_config_findings


def read(config: Config) -> Correction:
    """Read the canonical correction; loss and mode have the names of 0.7.0."""
    level = choice(config, "rollout_is", (None, "token", "sequence"))
    weighting = None
    if level is not None and config["rollout_is_threshold"] is not None:
        weighting = Weighting(level, positive(config, "rollout_is_threshold"))
    veto = config["rollout_token_veto_threshold"]
    if veto is not None:
        veto = positive(config, "rollout_token_veto_threshold")
    gradient = config.get("use_policy_gradient", False)
    loss = config.get("loss_type", "reinforce" if gradient else "ppo_clip")
    return Correction(
        weighting=weighting,
        rejections=_rejections(config),
        veto=veto,
        batch_normalize=bool(config["rollout_is_batch_normalize"]),
        weights_applied=not config["bypass_mode"] or loss == "reinforce",
        mode="bypass" if config["bypass_mode"] else "decoupled",
        loss=loss,
    )


def _rejections(config: Config) -> tuple[Rejection, ...]:
    level = choice(config, "rollout_rs", (None, "token", "sequence", "geometric"))
    if level is None:
        return ()
    if config["rollout_rs_threshold"] is None:
        raise Refused(
            "rollout_rs_threshold: not set, and verl stops without it",
            "its documents say that it falls back to rollout_is_threshold; the code does not",
        )
    upper = positive(config, "rollout_rs_threshold")
    lower = optional_number(config, "rollout_rs_threshold_lower")
    return (Rejection(level, upper, 1.0 / upper if lower is None else lower),)


def _as_weighting(rejection: Rejection) -> Weighting:
    return Weighting(rejection.statistic, rejection.upper, rejection.lower)  # type: ignore[arg-type]


def quantities(correction: Correction) -> list[Quantity]:
    """Return the quantities of tokens that `metrics` reads."""
    needed = list(ALWAYS)
    for weighting in (correction.weighting, *map(_as_weighting, correction.rejections)):
        if weighting is not None:
            needed += weight_quantities(weighting, "raw")
    if correction.veto is not None:
        needed.append(veto_quantity(correction.veto))
    return needed


def metrics(batch: Batch, correction: Correction, *, normalize_valid: bool) -> Metrics:
    """Return all logged numbers under their keys with prefix."""
    logged: Metrics = {}
    if correction.weighting is not None:
        logged |= weight_metrics(batch, correction.weighting, "rollout_is", of="raw")
        if correction.batch_normalize:
            factor = normaliser(batch, correction, valid_rows=normalize_valid)
            logged["rollout_is_batch_norm_factor"] = factor
    for rejection in correction.rejections:
        logged |= _rejection_metrics(batch, rejection)
    logged |= _veto(batch, correction)
    logged |= off_policy(batch)
    return {f"rollout_corr/{name}": value for name, value in logged.items()}


def _rejection_metrics(batch: Batch, rejection: Rejection) -> Metrics:
    lower, upper = rejection.lower or 0.0, rejection.upper
    kept = outcome(batch.rows, Correction(rejections=(rejection,))).kept
    # A row without a token has a product of 1, and is rejected where the bounds leave 1 out.
    by_row = not rejection.of_tokens
    padding = 1.0 if by_row and not lower <= 1.0 <= upper else 0.0
    return {
        **weight_metrics(batch, _as_weighting(rejection), "rollout_rs", of="raw"),
        **masked_fractions(batch, kept, padding),
    }


def _veto(batch: Batch, correction: Correction) -> Metrics:
    vetoed, below = 0.0, 0.0
    if correction.veto is not None:
        quantity = veto_quantity(correction.veto)
        vetoed = float(vetoed_rows(batch.rows, correction.veto).sum() / batch.all_rows)
        below = batch.token_mean(batch.rows.columns[quantity])
    return {
        "rollout_is_veto_fraction": vetoed,
        "rollout_is_catastrophic_token_fraction": below,
    }


_SETTINGS: dict[str, Any] = {
    "rollout_is": "sequence",
    "rollout_is_threshold": 2.0,
    "rollout_rs": None,
    "rollout_rs_threshold": None,
    "rollout_rs_threshold_lower": None,
    "rollout_token_veto_threshold": None,
    "bypass_mode": False,
    "rollout_is_batch_normalize": False,
}
_GEO: dict[str, Any] = {
    "rollout_is": None,
    "rollout_rs": "geometric",
    "rollout_rs_threshold": 1.001,
    "rollout_token_veto_threshold": 1e-4,
}
_SEQ: dict[str, Any] = {"rollout_is": "sequence"}
_OFF: dict[str, Any] = {"rollout_is": None}
_DECOUPLED: dict[str, Config] = {
    "decoupled_token_is": {"rollout_is": "token"},
    "decoupled_seq_is": _SEQ,
    "decoupled_seq_is_rs": {**_SEQ, "rollout_rs": "sequence", "rollout_rs_threshold": 2.0},
    "decoupled_geo_rs": _GEO,
}
_BYPASS = {"bypass_mode": True}
_PG = {**_BYPASS, "use_policy_gradient": True}
_REINFORCE = {**_BYPASS, "loss_type": "reinforce"}


def _is_ratio_style(config: Config) -> bool:
    """Tell whether settings have names and words that later generations lack."""
    names = {"rollout_rs_threshold_lower", "rollout_token_veto_threshold", "use_policy_gradient"}
    levels = ("token", "sequence", "geometric")
    return bool(names & set(config)) or config.get("rollout_rs") in levels


def _claim_061(config: Config, document: Document) -> Claim | None:
    if not _is_ratio_style(config) or "use_policy_gradient" not in config:
        return None
    return Claim(0.8, "verl-20251203 has the same settings")


def _claim_070(config: Config, document: Document) -> Claim | None:
    if not _is_ratio_style(config) or "use_policy_gradient" in config:
        return None
    return Claim(0.8, "" if "loss_type" in config else "verl-0.6.1 has these settings too")


def _config(version: str, loss: str) -> ConfigFile:
    """Make the config file of a version; `loss` is what it calls the loss of bypass mode."""
    return ConfigFile(
        path=PATH,
        whole=is_whole,
        loss=loss_in,
        findings=partial(whole_config_findings, version=version),
        write=partial(by_ratios, loss=loss),
        needs=NEEDS,
        hydra=True,
    )


GENERATIONS = (
    Trainer(
        name="verl-0.6.1",
        family=FAMILY,
        package=PACKAGE,
        settings={**_SETTINGS, "use_policy_gradient": False},
        unset=UNSET,
        presets={
            **_DECOUPLED,
            "ppo_is_bypass": {"rollout_is": "token", **_BYPASS},
            "pg_is": {**_SEQ, **_PG},
            "pg_rs": {**_GEO, **_PG},
            "disabled": _OFF,
        },
        read=read,
        ignored=ignored,
        quantities=quantities,
        metrics=partial(metrics, normalize_valid=False),
        normaliser=partial(normaliser, valid_rows=False),
        update=UPDATE_061,
        config=replace(_config("0.6.1", "use_policy_gradient"), claim=_claim_061),
    ),
    Trainer(
        name="verl-20251203",
        family=FAMILY,
        package=PACKAGE,
        settings={**_SETTINGS, "use_policy_gradient": False},
        unset=UNSET,
        presets={
            **_DECOUPLED,
            "geo_rs_seq_tis": {**_GEO, **_SEQ},
            "ppo_is_bypass": {**_OFF, **_BYPASS},
            "pg_is": {**_SEQ, **_PG},
            "pg_rs": {**_GEO, **_PG},
            "pg_geo_rs_seq_tis": {**_GEO, **_SEQ, **_PG},
            "disabled": _OFF,
        },
        read=read,
        ignored=ignored,
        quantities=quantities,
        metrics=partial(metrics, normalize_valid=False),
        normaliser=partial(normaliser, valid_rows=False),
        update=UPDATE_20251203,
        config=_config("20251203", "use_policy_gradient"),
    ),
    Trainer(
        name="verl-0.7.0",
        family=FAMILY,
        package=PACKAGE,
        settings={**_SETTINGS, "loss_type": "ppo_clip"},
        unset=UNSET,
        presets={
            **_DECOUPLED,
            "geo_rs_seq_tis": {**_GEO, **_SEQ},
            "bypass_ppo_clip": {**_OFF, **_BYPASS},
            "bypass_ppo_clip_geo_rs": {**_GEO, **_BYPASS},
            "bypass_pg_is": {**_SEQ, **_REINFORCE},
            "bypass_pg_rs": {**_GEO, **_REINFORCE},
            "bypass_pg_geo_rs_seq_tis": {**_GEO, **_SEQ, **_REINFORCE},
            "disabled": _OFF,
        },
        read=read,
        ignored=ignored,
        quantities=quantities,
        metrics=partial(metrics, normalize_valid=True),
        normaliser=partial(normaliser, valid_rows=True),
        update=UPDATE_070,
        config=replace(_config("0.7.0", "loss_type"), claim=_claim_070, on_sweep_page=True),
    ),
)
