"""These options mean the same in every command, and are defined once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rcdiag.errors import RcdiagError


class FailOn(StrEnum):
    """The severity from which on findings make the exit code 1."""

    never = "never"
    warning = "warning"
    error = "error"


class LadderName(StrEnum):
    """Ready sets of policies to score."""

    precision = "precision"
    engine = "engine"


OUTPUT = "Output"


DumpArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="DUMP...",
        help="Dump ({readers}): file, directory, glob or URL; several of one run are joined",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="FORMAT", help="The dump's format, where its files do not tell: {readers}"
    ),
]
Given = Annotated[
    list[str] | None,
    typer.Option(
        "--given",
        metavar="NAME=VALUE",
        help="What the dump lacks and you know, e.g. `temperature=0.7`, `group_size=8`; repeatable",
    ),
]
Column = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="CANONICAL=NAME",
        help="Read column NAME as CANONICAL; repeatable; `CANONICAL=` reads none",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="Checkpoint folder of policies that name no other"),
]
Policy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=BACKEND[:DTYPE][,key=value...]",
        help="Score a policy with a backend ({backends}), e.g. `old=hf:float32`; repeatable",
    ),
]
Ladder = Annotated[
    list[LadderName] | None,
    typer.Option(
        help="Score a ready set: vllm and hf from low to full precision, or decode, prefill and hf "
        "in one precision",
    ),
]
NoiseFloor = Annotated[
    bool,
    typer.Option(
        "--noise-floor", help="Score one policy once more, with other batches: NAME_again"
    ),
]
On = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="Where engines run and parts of the table are read: local, ray (the cluster that runs "
        "here) or ray:ADDRESS",
    ),
]
DeviceList = Annotated[
    str | None,
    typer.Option(
        "--devices",
        metavar="N|LIST",
        help="GPUs that engines use, 4 or 0,1,2,3: one engine for each set; without a GPU shares "
        "of the cores",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        metavar="TOKENS",
        help="Tokens that one engine scores in a second, for the hours that --dry-run says",
    ),
]
Behavior = Annotated[str, typer.Option(metavar="NAME", help="Policy that sampled")]
Target = Annotated[
    str, typer.Option(metavar="NAME", help="Policy that trains; log_ratio = target - behavior")
]
BehaviorOrChosen = Annotated[
    str | None, typer.Option("--behavior", metavar="NAME", help="Policy that sampled: rollout")
]
TargetOrChosen = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="NAME",
        help="Policy that trains: old; log_ratio = target - behavior",
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of all that is drawn at random")]
Rows = Annotated[
    int | None,
    typer.Option(
        "--rows",
        metavar="N",
        min=1,
        help="Draw about N rows, whole prompt groups by --seed: a first look at a huge dump",
    ),
]
OutputTable = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Parquet to write, with the scores; or a URL of object storage (s3://, gs://)",
        rich_help_panel=OUTPUT,
    ),
]
ResultFile = Annotated[
    Path | None, typer.Option("--result", help="Result JSON to write", rich_help_panel=OUTPUT)
]
ResultAlone = Annotated[
    Path | None,
    typer.Option("-o", "--result", help="Result JSON to write", rich_help_panel=OUTPUT),
]
CsvFile = Annotated[
    Path | None,
    typer.Option(
        "--csv",
        help="CSV to write: one row for each metric and step",
        rich_help_panel=OUTPUT,
    ),
]
HtmlFile = Annotated[
    Path | None,
    typer.Option("--html", help="Self-contained report to write", rich_help_panel=OUTPUT),
]
PlotsFolder = Annotated[
    Path | None,
    typer.Option(
        "--plots", help="Folder for the figures as PDF, SVG, PNG and CSV", rich_help_panel=OUTPUT
    ),
]
Figures = Annotated[
    list[str] | None,
    typer.Option(
        "--figure",
        metavar="NAME",
        help="Figure to write with --plots, of all that there are. May be repeated",
        rich_help_panel=OUTPUT,
    ),
]
FigureWidth = Annotated[
    float | None,
    typer.Option(
        "--width",
        min=1.0,
        help="Width of figures in inches: 3.3 for a column, 6.9 for a page",
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result document alone", rich_help_panel=OUTPUT)
]
IncludeText = Annotated[
    bool | None,
    typer.Option(
        "--include-text/--no-text",
        help="Whether result and page hold text of the worst sequences. By default they do where "
        "the tokenizer of --model, or of the model that the table names, is here; --include-text "
        "refuses to run without one, --no-text keeps all text out; token ids, paths and the host's "
        "name stay",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
SequenceRow = Annotated[
    list[int] | None,
    typer.Option(
        "--sequence",
        metavar="ROW",
        help="Row whose tokens result and page hold whole, beside the worst ones and some drawn at "
        "random; repeatable",
        rich_help_panel=OUTPUT,
    ),
]
Fail = Annotated[FailOn, typer.Option("--fail-on", help="Exit 1 on findings from this level on")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite outputs and recorded columns")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, say what would run")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Say nothing but errors")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Say more: all metrics' meaning")]


def parse_columns(pairs: list[str] | None) -> dict[str, str]:
    """Read `--column CANONICAL=NAME` options as a mapping; NAME may be empty."""
    renames: dict[str, str] = {}
    for pair in pairs or []:
        canonical, equals, name = pair.partition("=")
        if not equals or not canonical:
            raise RcdiagError(
                f"--column {pair}: wanted CANONICAL=NAME",
                hint="for example --column rollout_log_probs=inference_logprobs",
            )
        renames[canonical] = name
    return renames


def parse_given(pairs: list[str] | None) -> dict[str, str]:
    """Read `--given NAME=VALUE` options as a mapping."""
    values: dict[str, str] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name or not value:
            raise RcdiagError(
                f"--given {pair}: wanted NAME=VALUE", hint="for example --given temperature=0.7"
            )
        if values.get(name, value) != value:
            raise RcdiagError(
                f"--given {pair}: --given {name}={values[name]} is given as well",
                hint="one value holds for all rows",
            )
        values[name] = value
    return values
