"""NeMo-RL's block `loss_fn` says by switches which policy loss it takes.

Source: NVIDIA-NeMo/RL commit 7ea279ab, nemo_rl/algorithms/loss/loss_functions.py,
`ClippedPGLossConfig`.
"""

from __future__ import annotations

from rcdiag.trainers.loss_choice import LossChoice, numbers, value
from rcdiag.trainers.settings_document import Document

_SWITCHES = {
    "force_on_policy_ratio": "on_policy",
    "use_cispo": "cispo",
    "disable_ppo_ratio": "gpg",
    "sequence_level_importance_ratios": "gspo",
}


def loss_in(document: Document) -> LossChoice:
    """Read the switches of the loss, the clip range, dual clip and token_level_loss."""
    chosen = [
        loss for name, loss in _SWITCHES.items() if value(document, f"loss_fn.{name}") is True
    ]
    written = document.find("loss_fn")
    by_token = value(document, "loss_fn.token_level_loss")
    reductions = {True: "token-mean", False: "seq-mean-token-mean"}
    return LossChoice(
        loss=chosen[0] if chosen else "vanilla" if isinstance(written, dict) else "",
        aggregation=None if by_token is None else reductions[bool(by_token)],
        own=numbers(
            document,
            clip_low="loss_fn.ratio_clip_min",
            clip_high="loss_fn.ratio_clip_max",
            clip_c="loss_fn.ratio_clip_c",
        ),
    )
