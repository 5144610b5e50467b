"""`rcdiag compare`: every pair of policies of one table, or of several tables joined."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import options, scoring

if TYPE_CHECKING:
    from rcdiag.results import JoinReport
    from rcdiag.table.table import Table

EPILOG = """Examples

`rcdiag score sample_data/rollouts.parquet --model sample_data/policy/step_8 --ladder engine
--noise-floor -o scored.parquet`, then `rcdiag compare scored.parquet --html compare.html`

`rcdiag compare run_a.parquet run_b.parquet --policy rollout --policy old --policy old_run_b`"""

Tables = Annotated[
    list[str],
    typer.Argument(
        metavar="DUMP...",
        help="Trajectory tables; several are joined on sample_id, rows with other tokens left out",
    ),
]
Chosen = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="NAME | NAME=BACKEND[:DTYPE][,...]",
        help="Compare only these, in this order from sampler to trainer; with = score it first",
    ),
]


Sampler = Annotated[
    str | None, typer.Option("--behavior", metavar="NAME", help="The sampler; default rollout")
]
Trained = Annotated[
    str | None, typer.Option("--target", metavar="NAME", help="The trainer; default old")
]


def compare(
    dump: Tables,
    model: options.Model = None,
    policy: Chosen = None,
    ladder: options.Ladder = None,
    noise_floor: options.NoiseFloor = False,
    behavior: Sampler = None,
    target: Trained = None,
    column: options.Column = None,
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
    """Compare all policies pair by pair: who is nearest to the sampler, which step adds what."""
    from cli.outputs import finish
    from cli.terminal.screen import Screen
    from rcdiag.usecases.compare.roles import choose
    from rcdiag.usecases.compare.run import compare as measure

    screen = Screen(quiet=quiet, verbose=verbose, json=json)
    renames = options.parse_columns(column)
    texts = [text for text in policy or [] if "=" in text]
    with _one_table(dump, renames) as (table, origin, joined):
        source = " + ".join(dump)
        specs = scoring.wanted_policies(screen, texts, ladder, model, table, twice=noise_floor)
        options.check_outputs([result, html, plots], force)
        names = [text.partition("=")[0] for text in policy or []]
        there = [*table.policies, *(spec.name for spec in specs)]
        choose(list(dict.fromkeys(there)), names, source)
        if dry_run:
            scoring.dry_run(screen, source, table, specs, None, force)
            return
        again = [spec.name for spec in specs if noise_floor and spec.name.endswith("_again")]
        with scoring.scored_table(screen, table, specs, None, force) as scored:
            found = measure(
                scored,
                policies=[*names, *again] if names else [],
                behavior=behavior,
                target=target,
                seed=seed,
                origin=origin,
                joined=joined,
            )
    finish(found, screen, result=result, html=html, plots=plots, table=None)
    screen.exit(found, fail_on)


@contextlib.contextmanager
def _one_table(
    dumps: list[str], renames: dict[str, str]
) -> Iterator[tuple[Table, Table, JoinReport | None]]:
    """The table itself, or several joined in a folder for the moment; and all that was given."""
    from rcdiag.table.join import join_tables
    from rcdiag.table.table import open_table

    tables = [open_table(each, renames) for each in dumps]
    if len(tables) == 1:
        yield tables[0], tables[0], None
        return
    with tempfile.TemporaryDirectory(prefix="rcdiag-") as folder:
        path = Path(folder) / "joined.parquet"
        joined, report = join_tables(tables, _names(dumps), path)
        files = tuple(file for table in tables for file in table.files)
        yield joined, replace(tables[0], files=files), report


def _names(dumps: list[str]) -> list[str]:
    """A short name of each table, fit for the end of a policy's name."""
    from rcdiag.table.trajectories import POLICY_NAME

    names: list[str] = []
    for each in dumps:
        stem = "".join(c if POLICY_NAME.fullmatch(c) else "_" for c in Path(each).stem) or "table"
        names.append(stem if stem not in names else f"{stem}_{len(names) + 1}")
    return names
