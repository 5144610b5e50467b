"""Options of `replay`: the update, and the loss that they make."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcdiag.errors import RcdiagError

if TYPE_CHECKING:
    from rcdiag.usecases.replay.preset import Update

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
    _of(
        "Policy loss in decoupled mode: vanilla (PPO), gspo, cispo, sapo, gpg, geo_mean, dppo_tv, "
        "dppo_kl, kl_cov, dro",
        metavar="NAME",
    ),
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


def update_of(given: dict, columns: list[str], trainer: str) -> Update:
    """How the loss is made, from the options."""
    from dataclasses import replace

    from rcdiag.trainers.generations import default_settings, find_loss
    from rcdiag.usecases.replay.batch import advantage_source
    from rcdiag.usecases.replay.preset import Update

    find_loss(trainer, given["loss"])
    wanted = given["advantage"]
    settings = default_settings(trainer)
    chosen = given["aggregation"]
    aggregation = settings.aggregation if chosen is None else chosen.value
    settings = replace(
        settings,
        clip_low=given["clip_low"],
        clip_high=given["clip_high"],
        clip_c=settings.clip_c if given["clip_c"] is None else given["clip_c"],
        dro_beta=given["dro_beta"],
        aggregation=aggregation,
        denominator=_denominator(given),
        constant=given["constant"],
        scale_factor=_scale_factor(given, aggregation),
    )
    return Update(
        loss=given["loss"],
        settings=settings,
        advantage=advantage_source(
            None if wanted is None else wanted.value, dict.fromkeys(columns)
        ),
        rebaseline=given["rebaseline"],
    )


def _denominator(given: dict[str, Any]) -> Any:
    """`--denominator`, with a number where it is constant and nowhere else."""
    chosen, number = given["denominator"], given["constant"]
    if (chosen is Denominators.constant) != (number is not None):
        raise RcdiagError(
            "--denominator constant and --constant N go together",
            hint="what a step is divided by, for example --denominator constant --constant 1024",
        )
    return None if chosen is None else chosen.value


def _scale_factor(given: dict[str, Any], aggregation: str) -> float | None:
    """`--loss-scale-factor`, of the one aggregation that reads it."""
    number = given["loss_scale_factor"]
    if number is not None and aggregation != Aggregation.seq_mean_token_sum_norm.value:
        raise RcdiagError(
            f"--loss-scale-factor: {aggregation} has none",
            hint="--aggregation seq-mean-token-sum-norm",
        )
    return number
