"""`rcdiag sweep`: every estimator family over its thresholds, and what to take."""

from __future__ import annotations

from typing import Annotated

import typer

import rcdiag
from cli import options
from rcdiag.errors import RcdiagError
from rcdiag.files import check_apart, check_outputs

EPILOG = """Examples

`rcdiag sweep sample_data/stale.parquet --html sweep.html`

`rcdiag sweep sample_data/stale.parquet --emit verl > correction.yaml`, then
`rcdiag score sample_data/stale.parquet --trainer-config correction.yaml`"""


Thresholds = Annotated[
    int, typer.Option(min=2, max=100_000, help="About how many settings of each family")
]
Emit = Annotated[
    str | None,
    typer.Option(
        metavar="TRAINER",
        help="Print the configuration of what is recommended, alone, on stdout: {writers}",
        rich_help_panel=options.OUTPUT,
    ),
]
Trainer = Annotated[
    str | None,
    typer.Option(
        "--trainer",
        metavar="NAME",
        help="Trainer whose default is shown beside the choice ({trainers}); no number depends on "
        "it; default that of --emit, else verl",
    ),
]
CandidateName = Annotated[
    str | None,
    typer.Option(
        "--candidate",
        metavar="NAME",
        help="Rank a threshold of your own with the others, e.g. `seq_tis_3`; with --emit print "
        "its configuration",
    ),
]


def sweep(
    dump: options.DumpArgument,
    behavior: options.Behavior = "rollout",
    target: options.Target = "old",
    thresholds: Thresholds = 60,
    column: options.Column = None,
    format: options.Format = None,
    given: options.Given = None,
    trainer: Trainer = None,
    emit: Emit = None,
    candidate: CandidateName = None,
    on: options.On = "local",
    workers: options.Workers = None,
    result: options.ResultAlone = None,
    csv: options.CsvFile = None,
    html: options.HtmlFile = None,
    plots: options.PlotsFolder = None,
    figure: options.Figures = None,
    width: options.FigureWidth = None,
    json: options.Json = False,
    fail_on: options.Fail = options.FailOn.never,
    rows: options.Rows = None,
    seed: options.Seed = 0,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Try every estimator over its thresholds in one pass, and recommend one, or none."""
    from cli.outputs import Drawing, chosen, finish
    from cli.terminal.screen import Screen

    if json and emit:
        raise RcdiagError("--json and --emit both want stdout", hint="--result FILE --emit ...")
    screen = Screen(quiet=quiet, verbose=verbose, json=json)
    check_apart([result, csv, html, plots], dump)
    check_outputs([result, csv, html, plots], force=force)
    drawing = Drawing.of(plots, figure, width)
    with screen.progress() as progress:
        swept = chosen(rcdiag.sweep, dry_run)(
            dump,
            behavior=behavior,
            target=target,
            thresholds=thresholds,
            columns=options.parse_columns(column),
            format=format,
            given=options.parse_given(given),
            trainer=trainer,
            emit=emit,
            candidate=candidate,
            rows=rows,
            seed=seed,
            on=on,
            workers=workers,
            progress=progress,
        )
    finish(
        swept,
        screen,
        result=result,
        csv=csv,
        html=html,
        drawing=drawing,
        instead=(lambda swept: rcdiag.emit(swept, emit, candidate)) if emit else None,
        fail_on=fail_on,
    )
