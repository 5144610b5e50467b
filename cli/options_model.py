"""These options of `replay` say how a model is trained."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from rcdiag.errors import RcdiagError

PANEL = "With a model"


class OptimizerName(StrEnum):
    """The optimizer that takes the step."""

    sgd = "sgd"
    adamw = "adamw"


class ReferenceName(StrEnum):
    """The gradient that presets' gradients are compared with."""

    seq_is = "seq_is"
    fresh = "fresh"
    none = "none"


def _of(text: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=PANEL, metavar=metavar)


Precision = Annotated[
    str,
    _of(
        "Of the trained model, with options as in --policy",
        metavar="DTYPE[,autocast=bfloat16][,...]",
    ),
]
Reference = Annotated[
    ReferenceName,
    _of("Gradient to compare with: unbiased sequence IS, or fresh samples (--reward)"),
]
Optimizer = Annotated[OptimizerName, _of("Optimizer of the step")]
LearningRate = Annotated[float, _of("Its learning rate", "--lr", metavar="RATE")]
WeightDecay = Annotated[float, _of("Its weight decay")]
Momentum = Annotated[float, _of("Of sgd")]
MaxGradNorm = Annotated[float, _of("Longer gradients are scaled down to it; 0: never")]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over the batch", rich_help_panel=PANEL)]
Minibatches = Annotated[
    int, typer.Option(min=1, help="Optimizer steps of a pass", rich_help_panel=PANEL)
]
Steps = Annotated[
    int,
    typer.Option(min=1, help="Number of table steps to update over", rich_help_panel=PANEL),
]
Split = Annotated[
    int | None,
    typer.Option(min=2, help="Also replay the batch in N mini-batches", rich_help_panel=PANEL),
]
Lora = Annotated[
    int | None,
    typer.Option(min=1, help="Rank of adapters, for models that do not fit", rich_help_panel=PANEL),
]
Checkpointing = Annotated[
    bool, _of("Recompute activations: less memory, more time", "--checkpointing")
]
BatchTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a micro-batch", rich_help_panel=PANEL)
]
RewardOption = Annotated[
    str | None,
    _of(
        "function(prompt, response, row) -> number, for fresh samples",
        "--reward",
        metavar="FILE.py:FUNCTION",
    ),
]
Evaluate = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Measure the reward of N fresh samples before and after; needs --reward",
        rich_help_panel=PANEL,
    ),
]
Save = Annotated[Path | None, _of("Folder for the updated model; with one --preset", metavar="DIR")]


def refuse_without_model(context: typer.Context) -> None:
    """Refuse options of the model without `--model`, which would be ignored."""
    for option in context.command.params:
        source = context.get_parameter_source(str(option.name))
        given = source is not None and source.name == "COMMANDLINE"
        if given and getattr(option, "rich_help_panel", None) == PANEL:
            raise RcdiagError(f"{option.opts[0]} needs a model", hint="--model CHECKPOINT")
