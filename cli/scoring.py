"""Scoring before measuring: what `score` and `compare` share."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cli import options

if TYPE_CHECKING:
    from cli.terminal.screen import Screen
    from rcdiag.engines.spec import PolicySpec
    from rcdiag.table.table import Table


def wanted_policies(
    screen: Screen,
    texts: list[str] | None,
    ladders: list[options.LadderName] | None,
    model: str | None,
    table: Table,
    *,
    twice: bool = False,
) -> list[PolicySpec]:
    """The policies to score; `--model` alone means those of the default pair that are missing.

    Of a ladder those that the table has already are left as they are. `twice`: one once more.
    """
    from rcdiag.engines.ladders import LADDERS, again, spec_of, to_repeat
    from rcdiag.engines.spec import default_policies, parse_policy

    texts = list(texts or [])
    for text in dict.fromkeys(text for name in ladders or [] for text in LADDERS[name.value]):
        if text.partition("=")[0] in table.policies:
            screen.say(f"{text.partition('=')[0]}: already in the table")
        else:
            texts.append(text)
    if not texts and not ladders and model is not None:
        defaults = default_policies().items()
        texts = [text for name, text in defaults if name not in table.policies]
    specs = [parse_policy(text, model) for text in texts]
    if not twice:
        return specs
    about = table.metadata.get("policies", {}).values()
    there = [spec for each in about if (spec := spec_of(each, model)) is not None]
    return [*specs, again(to_repeat(specs or there))]


def may_be_finished(output: Path | None) -> bool:
    """An output whose parts are still there may be that of a run killed after its last rename.

    Scoring looks closer, and refuses the output of any other run.
    """
    return output is not None and output.with_name(output.name + ".parts").exists()


@contextlib.contextmanager
def scored_table(
    screen: Screen,
    table: Table,
    specs: list[PolicySpec],
    output: Path | None,
    force: bool,
) -> Iterator[Table]:
    """The table with the wanted policies filled in; in a folder for the moment without `-o`."""
    if not specs:
        yield table
        return
    from rcdiag.engines.run import plan_scoring, run_scoring
    from rcdiag.errors import RcdiagError
    from rcdiag.table.table import open_table

    scratch = None
    if output is None:
        screen.say("the scored log-probs are not kept; rcdiag score ... -o FILE keeps them")
        scratch = Path(tempfile.mkdtemp(prefix="rcdiag-"))
    path = output or Path(scratch or ".") / "scored.parquet"
    try:
        plan = plan_scoring(table, specs, path, force=force)
        with screen.tokens() as on_tokens:
            run_scoring(plan, on_tokens, force=force)
        yield open_table(path)
    except RcdiagError as error:
        # A failed engine's log must stay where the error says it is.
        points_there = scratch is not None and str(scratch) in error.hint
        scratch = None if points_there else scratch
        raise
    finally:
        if scratch is not None:
            shutil.rmtree(scratch)


def dry_run(
    screen: Screen,
    dump: str,
    table: Table,
    specs: list[PolicySpec],
    output: Path | None,
    force: bool,
) -> None:
    """Say what would run; models and rows are checked, no engine starts."""
    screen.say(f"{dump}: {table.num_rows:,} sequences in {len(table.files)} files")
    if not specs:
        screen.say(f"would compute from recorded policies: {', '.join(table.policies)}")
        return
    from rcdiag.engines.run import plan_scoring

    plan = plan_scoring(table, specs, output or Path("scored.parquet"), force=force)
    lengths = plan.survey.lengths
    screen.say(
        f"{plan.survey.tokens:,} tokens to run, {plan.survey.sampled_tokens:,} of them sampled; "
        f"longest sequence {lengths.max():,}; {len(plan.ranges)} parts"
    )
    for spec in specs:
        given = ", ".join(f"{key}={value}" for key, value in spec.options.items())
        screen.say(f"would score `{spec.name}`: {spec.backend} {spec.dtype} {spec.model} {given}")
    screen.say(f"would write {output}" if output else "would keep no scores (no -o FILE)")
