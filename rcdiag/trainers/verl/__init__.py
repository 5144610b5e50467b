"""verl since its first weights (#2953): rollout correction, policy losses, configuration.

The presets are those of verl's `RolloutCorrectionConfig`, with the names of each generation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from rcdiag.corrections.correction import Correction
from rcdiag.trainers.loss_choice import LossChoice, number, value
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.settings_table import Settings, read_tables
from rcdiag.trainers.trainer import Config, Trainer, generation
from rcdiag.trainers.verl import losses
from rcdiag.trainers.verl.bypass_loss import with_bypass_loss
from rcdiag.trainers.verl.config_findings import config_findings
from rcdiag.trainers.verl.correction import (
    OPTIONS,
    by_cap,
    by_k,
    by_ratios,
    by_weights,
    facts,
)
from rcdiag.trainers.verl.metrics import (
    metrics,
    normaliser,
    ratio_metrics,
    weights_metrics,
)
from rcdiag.trainers.verl.typical import outside_of_guide

# A run whose YAML does not mention the correction computes no weights; `sequence` is only the
# default of the dataclass. verl/trainer/config/algorithm/rollout_correction.yaml
UNSET: Config = {"rollout_is": None}
_OFF, _TOKEN, _SEQ = {"rollout_is": None}, {"rollout_is": "token"}, {"rollout_is": "sequence"}
_BYPASS = {"bypass_mode": True}
# 0.6.1 to 0.7.0
_GEO_RATIO: Config = {
    "rollout_is": None,
    "rollout_rs": "geometric",
    "rollout_rs_threshold": 1.001,
    "rollout_token_veto_threshold": 1e-4,
}
_PG_061: Config = {**_BYPASS, "use_policy_gradient": True}
_DECOUPLED_RATIO: dict[str, Config] = {
    "decoupled_token_is": _TOKEN,
    "decoupled_seq_is": _SEQ,
    "decoupled_seq_is_rs": {**_SEQ, "rollout_rs": "sequence", "rollout_rs_threshold": 2.0},
    "decoupled_geo_rs": _GEO_RATIO,
}
# 0.7.1 and later
_ICEPOP: Config = {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}
_GEO: Config = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}
_K3: Config = {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01}
_PG: Config = {**_BYPASS, "loss_type": "reinforce"}
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
_PRESETS_080: dict[str, Config] = {
    **_PRESETS_071,
    "decoupled_token_icepop": _ICEPOP,
    "bypass_pg_token_icepop": {**_ICEPOP, **_PG},
}


def clip_range(document: Document, choice: LossChoice) -> LossChoice:
    """Add the clip range: `clip_ratio` applies to an end that is null; unset ends are 0.2."""
    both, own, notes = number(document, "actor.clip_ratio"), dict(choice.own), []
    for ours, name in (("clip_low", "clip_ratio_low"), ("clip_high", "clip_ratio_high")):
        side = value(document, f"actor.{name}", 0.2)  # the default of verl's own config
        clip = both if side is None else number(document, f"actor.{name}")
        if clip is not None:
            own[ours] = clip
        elif both is not None and both != 0.2:
            notes.append(f"actor.clip_ratio has no effect: {name} is 0.2 by default and counts")
    return replace(choice, own=own, notes=tuple(notes[:1]))


def _verl(name: str, read: Callable[[Settings], Correction], **parts: Any) -> Trainer:
    table = read_tables(__name__)[name].settings
    return generation(
        name,
        package=__name__,
        read=read,
        traps=lambda settings: outside_of_guide(
            settings, read(Settings(table, settings)), __name__
        ),
        whole=lambda document: document.has("actor_rollout_ref"),
        file_findings=partial(config_findings, version=name.removeprefix("verl-")),
        loss=clip_range,
        **parts,
    )


_WITH_K: dict[str, Any] = {
    "unset": UNSET,
    "rejects_by": OPTIONS,
    "normaliser": normaliser,
    "facts": facts,
}
GENERATIONS = (
    _verl(
        "verl-20250826",
        presets={"default": {"tis_imp_ratio_cap": 2.0}, "disabled": {}},
        read=by_cap,
        metrics=lambda batch, correction: {},
        update=losses.UPDATE_20250826,
    ),
    _verl(
        "verl-0.6.0",
        presets={"default": {"rollout_is": True, "rollout_is_threshold": 2.0}},
        read=partial(by_weights, mask_is_rejection=False),
        metrics=partial(weights_metrics, percentiles=True),
        update=losses.UPDATE_060,
    ),
    _verl(
        "verl-20251027",
        presets={"default": {"rollout_is": True, "rollout_is_threshold": 2.0}},
        read=partial(by_weights, mask_is_rejection=True),
        metrics=partial(weights_metrics, percentiles=False),
        update=losses.UPDATE_20251027,
    ),
    _verl(
        "verl-0.6.1",
        unset=UNSET,
        presets={
            **_DECOUPLED_RATIO,
            "ppo_is_bypass": {**_TOKEN, **_BYPASS},
            "pg_is": {**_SEQ, **_PG_061},
            "pg_rs": {**_GEO_RATIO, **_PG_061},
            "disabled": _OFF,
        },
        read=by_ratios,
        metrics=partial(ratio_metrics, normalize_valid=False),
        normaliser=partial(normaliser, valid_rows=False),
        update=losses.UPDATE_061,
    ),
    _verl(
        "verl-20251203",
        unset=UNSET,
        presets={
            **_DECOUPLED_RATIO,
            "geo_rs_seq_tis": {**_GEO_RATIO, **_SEQ},
            "ppo_is_bypass": {**_OFF, **_BYPASS},
            "pg_is": {**_SEQ, **_PG_061},
            "pg_rs": {**_GEO_RATIO, **_PG_061},
            "pg_geo_rs_seq_tis": {**_GEO_RATIO, **_SEQ, **_PG_061},
            "disabled": _OFF,
        },
        read=by_ratios,
        metrics=partial(ratio_metrics, normalize_valid=False),
        normaliser=partial(normaliser, valid_rows=False),
        update=losses.UPDATE_20251203,
    ),
    _verl(
        "verl-0.7.0",
        unset=UNSET,
        presets={
            **_DECOUPLED_RATIO,
            "geo_rs_seq_tis": {**_GEO_RATIO, **_SEQ},
            "bypass_ppo_clip": {**_OFF, **_BYPASS},
            "bypass_ppo_clip_geo_rs": {**_GEO_RATIO, **_BYPASS},
            "bypass_pg_is": {**_SEQ, **_PG},
            "bypass_pg_rs": {**_GEO_RATIO, **_PG},
            "bypass_pg_geo_rs_seq_tis": {**_GEO_RATIO, **_SEQ, **_PG},
            "disabled": _OFF,
        },
        read=by_ratios,
        metrics=partial(ratio_metrics, normalize_valid=True),
        normaliser=normaliser,
        update=losses.UPDATE_070,
    ),
    _verl(
        "verl-0.7.1",
        presets=_PRESETS_071,
        read=partial(by_k, icepop=False, ordered=False),
        metrics=partial(metrics, of="raw", fractions_of="raw"),
        update=losses.UPDATE_071,
        **_WITH_K,
    ),
    _verl(
        "verl-0.8.0",
        presets=_PRESETS_080,
        read=partial(by_k, icepop=True, ordered=False),
        metrics=partial(metrics, of="applied", fractions_of="applied"),
        update=losses.UPDATE_071,
        **_WITH_K,
    ),
    _verl(
        "verl-0.9",
        presets=_PRESETS_080,
        read=partial(by_k, icepop=True, ordered=True),
        metrics=partial(metrics, of="applied", fractions_of="raw"),
        update=losses.UPDATE_09,
        complete=partial(with_bypass_loss, defaults=read_tables(__name__)["verl-0.9"].defaults()),
        **_WITH_K,
    ),
)
