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
        help="A trainer's dump or a parquet table: file, folder, glob or URL; several dumps of "
        "one run are joined",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="FORMAT", help="Format of the dump if its files do not show it: {readers}"
    ),
]
Given = Annotated[
    list[str] | None,
    typer.Option(
        "--given",
        metavar="NAME=VALUE",
        help="A fact that is missing in the dump: `temperature=0.7`, `group_size=8`; repeatable",
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
    typer.Option(
        metavar="PATH", help="Checkpoint folder or hub id for policies without one of their own"
    ),
]
Policy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=ENGINE",
        help="Score a policy: `old=hf:float32`, `rollout=vllm:bfloat16`; repeatable; engines: "
        "{backends} (`rcdiag explain hf`)",
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
    typer.Option("--noise-floor", help="Score one policy again in other batches, as NAME_again"),
]
On = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="Where to run engines and read the table: local, ray (the running cluster) or "
        "ray:ADDRESS",
    ),
]
DeviceList = Annotated[
    str | None,
    typer.Option(
        "--devices",
        metavar="N|LIST",
        help="GPUs for engines, 4 or 0,1,2,3: one engine per set; on CPU a share of the cores",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Processes that read a large table; default all cores that this process may use",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        metavar="TOKENS",
        help="Tokens per second of one engine, for the time that --dry-run estimates",
    ),
]
Behavior = Annotated[str, typer.Option(metavar="NAME", help="Policy that sampled")]
Target = Annotated[
    str, typer.Option(metavar="NAME", help="Policy that trains; log_ratio = target - behavior")
]
BehaviorOrChosen = Annotated[
    str | None,
    typer.Option("--behavior", metavar="NAME", help="Policy that sampled; default rollout"),
]
TargetOrChosen = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="NAME",
        help="Policy that trains; default old; log_ratio = target - behavior",
    ),
]
Seed = Annotated[int, typer.Option(help="Random seed")]
Rows = Annotated[
    int | None,
    typer.Option(
        "--rows",
        metavar="N",
        min=1,
        help="Read about N rows, drawn by prompt group: a first look at a huge dump",
    ),
]
OutputTable = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Scored parquet table to write: file or object-store URL",
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
        help="CSV to write: one row per metric and step",
        rich_help_panel=OUTPUT,
    ),
]
HtmlFile = Annotated[
    Path | None,
    typer.Option("--html", help="Self-contained HTML page to write", rich_help_panel=OUTPUT),
]
PlotsFolder = Annotated[
    Path | None,
    typer.Option("--plots", help="Folder for figures (PDF, SVG, PNG, CSV)", rich_help_panel=OUTPUT),
]
Figures = Annotated[
    list[str] | None,
    typer.Option(
        "--figure",
        metavar="NAME",
        help="Figure to write with --plots; repeatable; default all",
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
    bool, typer.Option("--json", help="Print only the result document", rich_help_panel=OUTPUT)
]
IncludeText = Annotated[
    bool | None,
    typer.Option(
        "--include-text/--no-text",
        help="Text of the worst sequences in result and page; by default where a tokenizer is "
        "found (--model, or the model in the table's metadata); --include-text requires one; "
        "--no-text leaves text out, but not token ids, paths and the host's name",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
SequenceRow = Annotated[
    list[int] | None,
    typer.Option(
        "--sequence",
        metavar="ROW",
        help="Row whose tokens result and page show, besides the worst and some random ones; "
        "repeatable",
        rich_help_panel=OUTPUT,
    ),
]
Fail = Annotated[
    FailOn,
    typer.Option(
        "--fail-on", help="Exit 1 on findings of this level or above, or if nothing was compared"
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite outputs and recorded columns")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check inputs and print what would run")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print errors only")]
Verbose = Annotated[
    bool,
    typer.Option("-v", "--verbose", help="Print all numbers, limits and sources"),
]


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
