"""These options of `replay` choose the update and its loss."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

PANEL = "Update"


class Denominators(StrEnum):
    """The number that the loss is divided by."""

    kept = "kept"
    all = "all"
    constant = "constant"


def _of(text: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=PANEL, metavar=metavar)


Rollout = Annotated[str, typer.Option("--rollout", metavar="NAME", help="Policy that sampled")]
Old = Annotated[
    str, typer.Option("--old", metavar="NAME", help="Trainer's policy before the update")
]
Current = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Policy being updated; default `current` if recorded, else the old"
    ),
]
Step = Annotated[int | None, _of("Which step of the table; default the last", metavar="N")]
Loss = Annotated[
    str | None,
    _of(
        "Policy loss in decoupled mode: {losses}; default the trainer's first, PPO",
        metavar="NAME",
    ),
]
LossSetting = Annotated[
    list[str] | None,
    _of(
        "Any setting that the loss reads, e.g. tau_pos=2; repeatable; `rcdiag explain LOSS` lists "
        "them",
        metavar="NAME=VALUE",
    ),
]
AggregationOption = Annotated[
    str | None,
    _of(
        "token-mean, token-sum, seq-mean-token-sum, seq-mean-token-mean, "
        "seq-mean-token-sum-norm or prompt-mean-token-mean; default the trainer's",
        metavar="NAME",
    ),
]
DenominatorOption = Annotated[
    Denominators | None,
    _of(
        "Are rejected tokens counted in what the loss is divided by? Default: as in the trainer's "
        "loss function",
    ),
]
Constant = Annotated[
    float | None,
    _of(
        "What --denominator constant divides by at each optimizer step: tokens (token-mean) or "
        "sequences (seq-mean-...)",
        metavar="N",
    ),
]
LossScaleFactor = Annotated[
    float | None,
    _of("Of seq-mean-token-sum-norm; default the longest response", metavar="N"),
]
AdvantageOption = Annotated[
    str | None,
    _of(
        "Where advantages come from: column, grpo, rloo, reinforce++; default the column, else "
        "grpo",
        metavar="NAME",
    ),
]
Rebaseline = Annotated[bool, _of("Recompute advantages without the rejected rows", "--rebaseline")]
ClipLow = Annotated[
    float | None, _of("PPO clips below 1 - this; default the trainer's, 0.2 for most")
]
ClipHigh = Annotated[
    float | None, _of("PPO clips above 1 + this; default the trainer's, 0.2 for most")
]
ClipC = Annotated[float | None, _of("Dual clip for negative advantages; default the trainer's")]
DroBeta = Annotated[float | None, _of("Of the loss dro")]
