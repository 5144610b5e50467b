"""Options of `replay`: the update, and the loss that they make."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcdiag.errors import RcdiagError

if TYPE_CHECKING:
    from rcdiag.losses.aggregation import Aggregation
    from rcdiag.losses.settings import LossSettings
    from rcdiag.trainers.trainer import Trainer
    from rcdiag.usecases.replay.preset import Update

PANEL = "Update"


class Denominators(StrEnum):
    """What the loss is divided by."""

    kept = "kept"
    all = "all"
    constant = "constant"


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
    str | None,
    _of(
        "Policy loss in decoupled mode: vanilla (PPO, the default), gspo, cispo, sapo, gpg, "
        "geo_mean, dppo_tv, dppo_kl, kl_cov, dro",
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
        "token-mean, token-sum, seq-mean-token-sum, seq-mean-token-mean or "
        "seq-mean-token-sum-norm; default the trainer's",
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
Rebaseline = Annotated[bool, _of("Advantages anew, without the rejected rows", "--rebaseline")]
ClipLow = Annotated[float, _of("PPO clips below 1 - this")]
ClipHigh = Annotated[float, _of("PPO clips above 1 + this")]
ClipC = Annotated[float | None, _of("Dual clip for negative advantages; default the trainer's")]
DroBeta = Annotated[float | None, _of("Of the loss dro")]


def update_of(given: dict[str, Any], columns: list[str], trainer: Trainer) -> Update:
    """How the loss is made, from the options."""
    from rcdiag.usecases.replay.batch import advantage_source
    from rcdiag.usecases.replay.preset import Update

    rules = trainer.update
    name = given["loss"] or next(iter(rules.losses))
    loss = rules.loss(name, whose=trainer.name)
    own = {option: given[option] for option in ("clip_low", "clip_high")}
    own |= {option: given[option] for option in ("clip_c", "dro_beta") if given[option] is not None}
    own |= loss.parsed(given["loss_setting"] or [])
    settings = rules.defaults.changed(
        **own,
        aggregation=given["aggregation"] or rules.defaults.aggregation,
        denominator=_denominator(given),
        constant=given["constant"],
        scale_factor=given["loss_scale_factor"],
    )
    _check_aggregation(rules.aggregation("", settings), settings)
    return Update(
        loss=name,
        settings=settings,
        advantage=advantage_source(given["advantage"], dict.fromkeys(columns)),
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


def _check_aggregation(aggregation: Aggregation, settings: LossSettings) -> None:
    """`--loss-scale-factor` is for aggregations that read it."""
    if settings.scale_factor is not None and aggregation.horizon == "none":
        raise RcdiagError(
            f"--loss-scale-factor: {aggregation.name} has none",
            hint="--aggregation seq-mean-token-sum-norm",
        )
