"""Options of `replay`: the update, and the loss that they make."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

PANEL = "Update"


class Aggregation(StrEnum):
    """How per-token losses become one number."""

    token_mean = "token-mean"
    token_sum = "token-sum"
    seq_mean_token_sum = "seq-mean-token-sum"
    seq_mean_token_mean = "seq-mean-token-mean"
    seq_mean_token_sum_norm = "seq-mean-token-sum-norm"


class Denominators(StrEnum):
    """What the loss is divided by."""

    kept = "kept"
    all = "all"
    constant = "constant"


class AdvantageName(StrEnum):
    """Where advantages come from."""

    grpo = "grpo"
    rloo = "rloo"
    reinforce_pp = "reinforce++"
    column = "column"


def _of(text: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=PANEL, metavar=metavar)


Rollout = Annotated[str, typer.Option("--rollout", metavar="NAME", help="Policy that sampled")]
Old = Annotated[str, typer.Option("--old", metavar="NAME", help="Trainer's before the update")]
Current = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Being updated; default `current` if there, else the old"),
]
Step = Annotated[int | None, _of("Which step of the table; default the last", metavar="N")]
Loss = Annotated[
    str,
    _of("Policy loss in decoupled mode: {losses}", metavar="NAME"),
]
AggregationOption = Annotated[Aggregation | None, _of("Default: the trainer's")]
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
    AdvantageName | None, _of("Where advantages come from; default the column, else grpo")
]
Rebaseline = Annotated[bool, _of("Advantages anew, without the rejected rows", "--rebaseline")]
ClipLow = Annotated[float, _of("PPO clips below 1 - this")]
ClipHigh = Annotated[float, _of("PPO clips above 1 + this")]
ClipC = Annotated[float | None, _of("Dual clip for negative advantages; default the trainer's")]
DroBeta = Annotated[float | None, _of("Of the loss dro")]
