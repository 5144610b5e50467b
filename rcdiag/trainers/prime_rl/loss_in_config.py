"""prime-rl's table `trainer.loss` has the factors of its loss; its `type` is of the correction.

Source: prime-rl commit 559b4477, packages/prime-rl-configs/src/prime_rl/configs/trainer.py.
"""

from __future__ import annotations

from rcdiag.trainers.loss_choice import LossChoice, numbers, word
from rcdiag.trainers.settings_document import Document


def loss_in(document: Document) -> LossChoice:
    """Read the loss, adv_tau and kl_tau."""
    kinds = {"default": "dppo_tv", "ipo": "ipo_tv"}
    loss, refused = word(document, "loss.type", kinds, "a loss")
    own = numbers(document, adv_tau="loss.adv_tau", kl_tau="loss.kl_tau")
    return LossChoice(loss=loss, own=own, refused=refused)
