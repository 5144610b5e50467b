"""AReaL: rejection sampling in its decoupled loss, M2PO, and since June 2026 CISPO."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rcdiag.results import Finding
from rcdiag.trainers.areal.correction import BLOCK, facts, read
from rcdiag.trainers.areal.losses import (
    UPDATE,
    UPDATE_OF_1_0,
    loss_before_cispo,
    loss_with_cispo,
)
from rcdiag.trainers.areal.metrics import metrics
from rcdiag.trainers.settings_document import MISSING, Document
from rcdiag.trainers.settings_text import ABOVE_ALL
from rcdiag.trainers.trainer import Config, Refused, generation

# 0.3 has no `e` in the name and no mode (its realhf/impl/model/utils/ppo_functional.py).
_CAPS, _MODE = ("behave_imp_weight_cap", "behav_imp_weight_cap"), "behave_imp_weight_mode"
# The removed modes -> level and action of the block that replaces them.
_MODES = {
    "token_mask": ("token", "mask"),
    "token_truncate": ("token", "clamp"),
    "sequence_mask": ("sequence", "mask"),
    "sequence_truncate": ("sequence", "clamp"),
}


def complete(config: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Record whether the block is present, and read the removed settings as the block."""
    settings = dict(config)
    written = settings.get(BLOCK, MISSING)
    if written is not MISSING:
        settings[BLOCK] = isinstance(written, Mapping) or written is True
    cap, mode = document.find(*_CAPS), document.find(_MODE)
    if cap is MISSING and mode is MISSING:
        return settings, []
    mode = "token_mask" if mode is MISSING else mode
    finding = Finding(
        slug="removed-setting",
        severity="warning",
        message=f"{_CAPS[0]} (behav_ in AReaL 0.3) and {_MODE} were removed from AReaL, which "
        "stops on them; they are read as rejection_sampling",
        fix="write rejection_sampling instead",
        evidence={"cap": None if cap is MISSING else cap, "mode": mode},
    )
    if mode == "disabled":
        return {**settings, BLOCK: False}, [finding]
    if not isinstance(mode, str) or mode not in _MODES:
        raise Refused(f"{_MODE}: {mode!r} is not a mode", f"one of disabled, {', '.join(_MODES)}")
    level, action = _MODES[mode]
    if cap is None:  # raw weights, with nothing masked
        action, cap = "clamp", ABOVE_ALL
    block = _block(level=level, action=action, upper=5.0 if cap is MISSING else cap)
    return {**settings, BLOCK: True, **block}, [finding]


def _block(**own: Any) -> dict[str, Any]:
    """Return settings of the block under their dotted names."""
    return {f"{BLOCK}.{name}": value for name, value in own.items()}


_DECOUPLED: Config = {"use_decoupled_loss": True}
_RS: Config = {**_DECOUPLED, BLOCK: True}
# Modes with the defaults of RejectionSamplingConfig; M2PO's bound has no default, so it is that of
# its paper, arXiv 2510.01161.
_PRESETS: Mapping[str, Config] = {
    "default": {},
    "recomputed": {"recompute_logprob": True},
    "decoupled_loss": _DECOUPLED,
    "token_mask": _RS,
    "token_clamp": {**_RS, **_block(action="clamp")},
    "token_kl_k1": {**_RS, **_block(metric="kl_k1")},
    "token_kl_k2": {**_RS, **_block(metric="kl_k2")},
    "token_kl_k3": {**_RS, **_block(metric="kl_k3")},
    "sequence_mask": {**_RS, **_block(level="sequence")},
    "sequence_sum_mask": {**_RS, **_block(level="sequence", agg="sum")},
    "sequence_max_mask": {**_RS, **_block(level="sequence", agg="max")},
    "sequence_clamp": {**_RS, **_block(level="sequence", action="clamp")},
    "sequence_kl_k1": {**_RS, **_block(level="sequence", metric="kl_k1")},
    "sequence_kl_k2": {**_RS, **_block(level="sequence", metric="kl_k2")},
    "sequence_kl_k3": {**_RS, **_block(level="sequence", metric="kl_k3")},
    "m2po": {**_DECOUPLED, "m2_threshold": 0.04},
}
_SHARED: dict[str, Any] = {"package": __name__, "presets": _PRESETS}
_SHARED |= {"read": read, "complete": complete, "facts": facts}
GENERATIONS = (
    generation(
        "areal-1.0", metrics=metrics, update=UPDATE_OF_1_0, loss=loss_before_cispo, **_SHARED
    ),
    generation(
        "areal-20260822",
        metrics=partial(metrics, of_august=True),
        update=UPDATE,
        loss=loss_with_cispo,
        **_SHARED,
    ),
)
