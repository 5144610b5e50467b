"""`rcdiag compare`: every pair of policies of one table, or of several tables joined."""

from __future__ import annotations

from typing import Annotated

import typer

import rcdiag
from cli import options
from rcdiag.files import check_apart, check_outputs

EPILOG = """Examples

`rcdiag score sample_data/rollouts.parquet --model sample_data/policy/step_8 --ladder engine
--noise-floor -o scored.parquet`, then `rcdiag compare scored.parquet --html compare.html`

`rcdiag compare run_a.parquet run_b.parquet --policy rollout --policy old --policy old_run_b`"""

Tables = Annotated[
    list[str],
    typer.Argument(
        metavar="DUMP...",
        help="Dumps; several are joined on sample_id, rows with different tokens left out",
    ),
]
Chosen = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="NAME[=ENGINE]",
        help="Compare only these, in order from sampler to trainer; `NAME=ENGINE` scores it first "
        "({backends})",
    ),
]


Sampler = Annotated[
    str | None,
    typer.Option("--behavior", metavar="NAME", help="Policy that sampled; default rollout"),
]
Trained = Annotated[
    str | None, typer.Option("--target", metavar="NAME", help="Policy that trains; default old")
]


def compare(
    dump: Tables,
    model: options.Model = None,
    policy: Chosen = None,
    ladder: options.Ladder = None,
    noise_floor: options.NoiseFloor = False,
    on: options.On = "local",
    devices: options.DeviceList = None,
    workers: options.Workers = None,
    rate: options.Rate = None,
    behavior: Sampler = None,
    target: Trained = None,
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
    rows: options.Rows = None,
    seed: options.Seed = 0,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Compare all policies pair by pair: which fits the samples best, which step adds what."""
    from cli.outputs import Drawing, chosen, finish
    from cli.terminal.screen import Screen

    screen = Screen(quiet=quiet, verbose=verbose, json=json)
    check_apart([result, csv, html, plots], dump)
    check_outputs([result, csv, html, plots], force=force)
    drawing = Drawing.of(plots, figure, width)
    with screen.progress() as progress:
        document = chosen(rcdiag.compare, dry_run)(
            *dump,
            behavior=behavior,
            target=target,
            columns=options.parse_columns(column),
            format=format,
            given=options.parse_given(given),
            model=model,
            policies=policy or [],
            ladder=[name.value for name in ladder or []],
            noise_floor=noise_floor,
            on=on,
            devices=devices,
            workers=workers,
            rate=rate,
            rows=rows,
            seed=seed,
            force=force,
            progress=progress,
        )
    finish(document, screen, result=result, csv=csv, html=html, drawing=drawing, fail_on=fail_on)
