"""A configuration of TRL's GRPO says by `loss_type` which policy loss and which mean it takes.

ms-swift and Axolotl have the same names. Source: trl 1.16.0, trl/trainer/grpo_config.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from rcdiag.trainers.loss_choice import LossChoice, number, numbers, value
from rcdiag.trainers.settings_document import Document

LOSS_TYPES: Mapping[str, tuple[str, str]] = {
    "grpo": ("vanilla", "seq-mean-token-mean"),
    "bnpo": ("vanilla", "token-mean"),
    "dapo": ("vanilla", "token-mean"),
    "dr_grpo": ("vanilla", "seq-mean-token-sum-norm"),
    "luspo": ("vanilla", "seq-mean-token-sum"),
    "cispo": ("cispo", "token-mean"),
    "sapo": ("sapo", "seq-mean-token-mean"),
    "vespo": ("vespo", "token-mean"),
}


def of_loss_type(
    document: Document,
    types: Mapping[str, tuple[str, str]],
    places: Mapping[str, str],
    prefix: str = "",
) -> LossChoice:
    """Read a loss_type with the bounds that `places` name; cispo's upper bound is itself a ratio.

    `prefix` stands before all names, `trl.` in Axolotl's file.
    """
    kind = value(document, f"{prefix}loss_type")
    if kind is not None and kind not in types:
        known = ", ".join(types)
        return LossChoice(
            refused=f"loss_type: {kind} is a loss that rcdiag does not compute; it has {known}"
        )
    loss, aggregation = types.get(kind, ("", ""))
    own = numbers(document, **{ours: f"{prefix}{name}" for ours, name in places.items()})
    epsilon = number(document, f"{prefix}epsilon")
    high = number(document, f"{prefix}epsilon_high")
    high = epsilon if high is None else high
    own |= {} if epsilon is None else {"clip_low": epsilon}
    own |= {} if high is None else {"clip_high": high, "epsilon_high": high}
    if (level := value(document, f"{prefix}importance_sampling_level")) is not None:
        own["importance_sampling_level"] = level
    return LossChoice(
        loss=loss,
        aggregation=aggregation or None,
        scale_factor=number(document, f"{prefix}max_completion_length"),
        own=own,
    )


def loss_in(document: Document) -> LossChoice:
    """Read TRL's loss_type, epsilon, epsilon_high, delta, temperatures and VESPO's exponents."""
    places = {
        "delta": "delta",
        "tau_pos": "sapo_temperature_pos",
        "tau_neg": "sapo_temperature_neg",
        **{f"vespo_{name}": f"vespo_{name}" for name in ("k_pos", "lambda_pos")},
        **{f"vespo_{name}": f"vespo_{name}" for name in ("k_neg", "lambda_neg")},
    }
    return of_loss_type(document, LOSS_TYPES, places)
