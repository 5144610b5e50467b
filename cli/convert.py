"""`rcdiag convert`: a trainer's dump becomes a trajectory table in parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import rcdiag
from cli import options

EPILOG = """Examples

`rcdiag convert run/dump/ -o dump.parquet --given temperature=0.7`

`rcdiag convert sampler/ trainer/ -o dump.parquet`: two dumps of one run are joined

Formats (`rcdiag explain NAME`): {formats}"""

Output = Annotated[
    Path,
    typer.Option("-o", "--output", help="Parquet table to write", rich_help_panel=options.OUTPUT),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        metavar="PATH", help="Checkpoint folder with the tokenizer for dumps that hold only text"
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print every change")]


def convert(
    dump: options.DumpArgument,
    output: Output,
    format: options.Format = None,
    given: options.Given = None,
    tokenizer: Tokenizer = None,
    column: options.Column = None,
    json: options.Json = False,
    force: Force = False,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Turn a trainer's dump into a trajectory table; list what was changed and what is missing."""
    from cli.outputs import chosen
    from cli.terminal.screen import Screen

    screen = Screen(quiet=quiet, verbose=verbose, json=json)
    with screen.progress() as progress:
        result = chosen(rcdiag.convert, dry_run)(
            dump,
            output,
            format=format,
            given=options.parse_given(given),
            tokenizer=tokenizer,
            columns=options.parse_columns(column),
            force=force,
            progress=progress,
        )
    if isinstance(result, str):
        screen.say(result)
        return
    screen.show_conversion(result)
    screen.wrote(Path(output))
