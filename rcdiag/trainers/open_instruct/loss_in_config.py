"""open-instruct's flags say which policy loss it takes.

Source: open-instruct commit e6c3044a, open_instruct/grpo_utils.py, `GRPOExperimentConfig`.
"""

from __future__ import annotations

from rcdiag.trainers.loss_choice import LossChoice, number, numbers, value, word
from rcdiag.trainers.settings_document import Document


def loss_in(document: Document) -> LossChoice:
    """Read loss_fn, both ends of the clip, and loss_denominator: `token` or a number."""
    kinds = {"dapo": "vanilla", "cispo": "cispo"}
    loss, refused = word(document, "loss_fn", kinds, "a loss_fn")
    constant = None
    if value(document, "loss_denominator", "token") != "token":
        constant = number(document, "loss_denominator")
    return LossChoice(
        loss=loss,
        denominator=None if constant is None else "constant",
        constant=constant,
        own=numbers(document, clip_low="clip_lower", clip_high="clip_higher"),
        refused=refused,
    )
