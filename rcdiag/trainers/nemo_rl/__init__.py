"""NeMo-RL at commit 7ea279ab: weights in its clipped loss, and a filter of sequences."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from rcdiag.trainers.loss_choice import LossChoice, value
from rcdiag.trainers.nemo_rl.correction import read
from rcdiag.trainers.nemo_rl.losses import UPDATE
from rcdiag.trainers.nemo_rl.metrics import metrics
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trainer import Config, generation


def by_switches(document: Document, choice: LossChoice) -> LossChoice:
    """Add the policy loss, which is chosen by the first of several switches that is on."""
    switches = {
        "force_on_policy_ratio": "on_policy",
        "use_cispo": "cispo",
        "disable_ppo_ratio": "gpg",
        "sequence_level_importance_ratios": "gspo",
    }
    for name, loss in switches.items():
        if value(document, f"loss_fn.{name}") is True:
            return replace(choice, loss=loss)
    return replace(choice, loss="vanilla" if isinstance(document.find("loss_fn"), dict) else "")


def _truncated(kind: str, upper: float, lower: float | None = None) -> Config:
    return {
        **_IS,
        "truncated_importance_sampling_type": kind,
        "truncated_importance_sampling_ratio": upper,
        "truncated_importance_sampling_ratio_min": lower,
    }


_IS: Config = {"use_importance_sampling_correction": True}
_GSPO: Config = {"sequence_level_importance_ratios": True, "token_level_loss": False}
# Bounds have no defaults: these are from NeMo-RL's recipes (tis 2) and documents.
_PRESETS: Mapping[str, Config] = {
    "default": {},
    "importance_sampling": _IS,
    "token_tis": _truncated("tis", 2.0),
    "token_icepop": _truncated("icepop", 5.0, 0.5),
    "seq_mask_tis": _truncated("seq-mask-tis", 1.002, 0.999),
    "gspo_weights": {**_IS, **_GSPO},
    "gspo_tis": {**_truncated("tis", 2.0), **_GSPO},
    "seq_error_filter": {"seq_logprob_error_threshold": 1.5},
    "forced_on_policy": {"force_on_policy_ratio": True},
}
GENERATIONS = (
    generation(
        "nemo-rl",
        package=__name__,
        presets=_PRESETS,
        read=read,
        loss=by_switches,
        metrics=metrics,
        update=UPDATE,
    ),
)
