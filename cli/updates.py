"""Options of `replay`: the update, and the model that makes it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rcdiag.errors import RcdiagError

if TYPE_CHECKING:
    from rcdiag.backends.spec import PolicySpec

PANEL, MODEL = "Update", "With a model"


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


class OptimizerName(StrEnum):
    """The optimizer of the step."""

    sgd = "sgd"
    adamw = "adamw"


class ReferenceName(StrEnum):
    """What gradients are held against."""

    seq_is = "seq_is"
    fresh = "fresh"
    none = "none"


def _of(panel: str, text: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, metavar=metavar)


Rollout = Annotated[str, typer.Option("--rollout", metavar="NAME", help="Policy that sampled")]
Old = Annotated[str, typer.Option("--old", metavar="NAME", help="Trainer's before the update")]
Current = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Being updated; default `current` if there, else the old"),
]
Step = Annotated[int | None, _of(PANEL, "Which step of the table; default the last", metavar="N")]
Loss = Annotated[
    str,
    _of(
        PANEL,
        "Policy loss in decoupled mode: vanilla (PPO), gspo, cispo, sapo, gpg, geo_mean, dppo_tv, "
        "dppo_kl, kl_cov, dro",
        metavar="NAME",
    ),
]
AggregationOption = Annotated[Aggregation | None, _of(PANEL, "Default: the trainer's")]
DenominatorOption = Annotated[
    Denominators | None,
    _of(
        PANEL,
        "Are rejected tokens counted in what the loss is divided by? Default: as in the trainer's "
        "loss function",
    ),
]
AdvantageOption = Annotated[
    AdvantageName | None, _of(PANEL, "Where advantages come from; default the column, else grpo")
]
Rebaseline = Annotated[
    bool, _of(PANEL, "Advantages anew, without the rejected rows", "--rebaseline")
]
ClipLow = Annotated[float, _of(PANEL, "PPO clips below 1 - this")]
ClipHigh = Annotated[float, _of(PANEL, "PPO clips above 1 + this")]
ClipC = Annotated[
    float | None, _of(PANEL, "Dual clip for negative advantages; default the trainer's")
]
DroBeta = Annotated[float | None, _of(PANEL, "Of the loss dro")]
Precision = Annotated[
    str,
    _of(
        MODEL,
        "Of the trained model, with options as in --policy",
        metavar="DTYPE[,autocast=bfloat16][,...]",
    ),
]
Reference = Annotated[
    ReferenceName,
    _of(MODEL, "Gradient to compare with: unbiased sequence IS, or fresh samples (--reward)"),
]
Optimizer = Annotated[OptimizerName, _of(MODEL, "Optimizer of the step")]
LearningRate = Annotated[float, _of(MODEL, "Its learning rate", "--lr", metavar="RATE")]
WeightDecay = Annotated[float, _of(MODEL, "Its weight decay")]
Momentum = Annotated[float, _of(MODEL, "Of sgd")]
MaxGradNorm = Annotated[float, _of(MODEL, "Longer gradients are scaled down to it; 0: never")]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over the batch", rich_help_panel=MODEL)]
Minibatches = Annotated[
    int, typer.Option(min=1, help="Optimizer steps of a pass", rich_help_panel=MODEL)
]
Steps = Annotated[
    int,
    typer.Option(min=1, help="Go on over so many steps of the table", rich_help_panel=MODEL),
]
Split = Annotated[
    int | None,
    typer.Option(min=2, help="Also as so many mini-batches", rich_help_panel=MODEL),
]
Lora = Annotated[
    int | None,
    typer.Option(min=1, help="Rank, for models that do not fit", rich_help_panel=MODEL),
]
Checkpointing = Annotated[
    bool, _of(MODEL, "Recompute activations: less memory, more time", "--checkpointing")
]
BatchTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a micro-batch", rich_help_panel=MODEL)
]
RewardOption = Annotated[
    str | None,
    _of(
        MODEL,
        "function(prompt, response, row) -> number, for fresh samples",
        "--reward",
        metavar="FILE.py:FUNCTION",
    ),
]
Evaluate = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Reward of so many fresh samples before and after; needs --reward",
        rich_help_panel=MODEL,
    ),
]
Save = Annotated[
    Path | None, _of(MODEL, "Folder for the updated model; with one --preset", metavar="DIR")
]


# What means nothing without a model, with its default.
OF_MODEL = {
    "save": None,
    "evaluate": None,
    "reward": None,
    "split": None,
    "lora": None,
    "batch_tokens": None,
    "checkpointing": False,
    "epochs": 1,
    "minibatches": 1,
    "steps": 1,
}


def refuse_without_model(given: dict[str, Any]) -> None:
    """Nothing that was asked for is left undone in silence."""
    asked = [name for name, default in OF_MODEL.items() if given[name] != default]
    if asked:
        raise RcdiagError(
            f"--{asked[0].replace('_', '-')} needs a model", hint="--model CHECKPOINT"
        )


def model_spec(model: str, precision: str) -> PolicySpec:
    """`--model` with `--precision`, as a policy of backend hf."""
    from rcdiag.backends.spec import parse_policy

    return parse_policy(f"model=hf:{precision}", model)
