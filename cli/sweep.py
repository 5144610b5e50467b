"""`rcdiag sweep`: every estimator family over its thresholds, and what to take."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cli import options

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
        help="Print the configuration of what is recommended, alone, on stdout: verl, verl-0.7.0, "
        "slime, ...",
        rich_help_panel=options.OUTPUT,
    ),
]
CandidateName = Annotated[
    str | None,
    typer.Option(
        "--candidate",
        metavar="NAME",
        help="Print that of another candidate instead",
        rich_help_panel=options.OUTPUT,
    ),
]


def sweep(
    dump: options.DumpArgument,
    behavior: options.Behavior = "rollout",
    target: options.Target = "old",
    thresholds: Thresholds = 60,
    column: options.Column = None,
    emit: Emit = None,
    candidate: CandidateName = None,
    result: options.ResultAlone = None,
    html: options.HtmlFile = None,
    plots: options.PlotsFolder = None,
    json: options.Json = False,
    fail_on: options.Fail = options.FailOn.never,
    seed: options.Seed = 0,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Try every estimator over its thresholds in one pass, and recommend one, or none."""
    from cli.outputs import finish
    from cli.terminal.screen import Screen
    from rcdiag.errors import RcdiagError
    from rcdiag.table.table import open_table
    from rcdiag.usecases.score import check_pair
    from rcdiag.usecases.sweep.configuration import check_configuration, configuration
    from rcdiag.usecases.sweep.run import sweep as measure

    if json and emit:
        raise RcdiagError("--json and --emit both want stdout", hint="--result FILE --emit ...")
    if candidate and not emit:
        raise RcdiagError("--candidate without --emit", hint="--emit verl --candidate NAME")
    if emit:
        check_configuration(emit, candidate)
    screen = Screen(quiet=quiet, verbose=verbose, json=json)
    table = open_table(dump, options.parse_columns(column))
    options.check_outputs([result, html, plots], force)
    check_pair(table, behavior, target)
    if dry_run:
        screen.say(f"{dump}: {table.num_rows:,} sequences; would sweep {behavior} -> {target}")
        return
    found = measure(table, behavior=behavior, target=target, seed=seed, thresholds=thresholds)
    outputs = {"result": result, "html": html, "plots": plots}
    if emit is None:
        finish(found, screen, **outputs, table=None)
    else:
        finish(found, screen.aside(), **outputs, table=None)
        sys.stdout.write(configuration(found.recommendation, emit, candidate))
    screen.exit(found, fail_on)
