"""Axolotl's block `trl` says which policy loss its own GRPO trainer takes.

Source: axolotl 0.21.0, axolotl/utils/schemas/trl.py.
"""

from __future__ import annotations

from rcdiag.trainers.loss_choice import LossChoice
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trl.loss_in_config import LOSS_TYPES, of_loss_type

_TYPES = {
    **{name: pair for name, pair in LOSS_TYPES.items() if name != "vespo"},
    "luspo": ("luspo", ""),
}


def loss_in(document: Document) -> LossChoice:
    """Read loss_type, epsilon, epsilon_high, delta, importance_sampling_level and the length."""
    prefix = "trl." if document.has("trl.loss_type", "trl.epsilon", "trl.use_vllm") else ""
    return of_loss_type(document, _TYPES, {"delta": "delta"}, prefix)
