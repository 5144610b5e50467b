"""`rcdiag diagnose`: the causes of a mismatch by name, tested with the trainer's checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

import rcdiag
from cli import options
from rcdiag.files import check_apart, check_outputs

EPILOG = """Examples

`rcdiag diagnose sample_data/stale.parquet --model sample_data/policy/step_8 --html cause.html`

`rcdiag diagnose sample_data/rollouts.parquet --model 'sample_data/policy/step_{step}'
--checkpoint sample_data/policy --budget 60`"""

TrainersModel = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="The trainer's checkpoint folder; {step} is each row's step"),
]
Checkpoints = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoint",
        metavar="PATH",
        help="Other checkpoints to test, or a folder of them; repeatable; default: those of "
        "neighbouring steps next to --model",
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Start no new experiment after this time"),
]
RowsRead = Annotated[
    int,
    typer.Option(
        "--rows", metavar="N", min=1, help="Number of rows to score with the checkpoint, about"
    ),
]


def diagnose(
    dump: options.DumpArgument,
    model: TrainersModel = None,
    checkpoint: Checkpoints = None,
    budget: Budget = None,
    behavior: options.BehaviorOrChosen = None,
    target: options.TargetOrChosen = None,
    column: options.Column = None,
    format: options.Format = None,
    given: options.Given = None,
    result: options.ResultAlone = None,
    csv: options.CsvFile = None,
    html: options.HtmlFile = None,
    plots: options.PlotsFolder = None,
    figure: options.Figures = None,
    width: options.FigureWidth = None,
    json: options.Json = False,
    fail_on: options.Fail = options.FailOn.never,
    rows: RowsRead = 256,
    seed: options.Seed = 0,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Name the causes of a mismatch; with a checkpoint, test them by experiments."""
    from cli.outputs import Drawing, chosen, finish
    from cli.terminal.screen import Screen

    screen = Screen(quiet=quiet, verbose=verbose, json=json)
    check_apart([result, csv, html, plots], dump)
    check_outputs([result, csv, html, plots], force=force)
    drawing = Drawing.of(plots, figure, width)
    with screen.progress() as progress:
        document = chosen(rcdiag.diagnose, dry_run)(
            dump,
            model=model,
            checkpoints=checkpoint or (),
            budget=budget,
            behavior=behavior,
            target=target,
            columns=options.parse_columns(column),
            format=format,
            given=options.parse_given(given),
            rows=rows,
            seed=seed,
            progress=progress,
        )
    finish(document, screen, result=result, csv=csv, html=html, drawing=drawing, fail_on=fail_on)
