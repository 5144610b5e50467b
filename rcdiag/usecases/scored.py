"""Fill in log-probs that a table lacks before it is measured, for `score` and `compare`."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rcdiag.engines.gpus import gpus_here
from rcdiag.engines.ladders import LADDERS, NEED_A_GPU, policy_to_repeat, second_run, spec_of
from rcdiag.engines.notation import default_policies, parse_policy
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, one_of, setting
from rcdiag.files import check_outputs
from rcdiag.progress import SILENT, Progress
from rcdiag.runners import Runner
from rcdiag.table.destination import Destination
from rcdiag.table.parquet_files import open_written
from rcdiag.table.table import Table
from rcdiag.usecases.chosen_pair import ChosenPair

if TYPE_CHECKING:
    from rcdiag.engines.scoring import ScoringPlan

Policies = Mapping[str, str] | Sequence[str]  # {"old": "hf:float32"} or ["old=hf:float32"]


def policy_texts(policies: Policies) -> list[str]:
    """Return policies as `NAME=BACKEND[:DTYPE][,key=value...]`; recorded ones as their name."""
    if isinstance(policies, Mapping):
        return [f"{name}={spec}" if spec else name for name, spec in policies.items()]
    return [policies] if isinstance(policies, str) else list(policies)


def needed_columns(
    pair: Iterable[str], policies: Policies, model: str | Path | None, ladder: str | Sequence[str]
) -> list[str]:
    """Return the columns that a table must have to measure a pair, beside `response_ids`.

    Of the pair these are the log-probs of policies that are not to be scored.
    """
    scored = {text.partition("=")[0] for text in policy_texts(policies)}
    if model is not None or ladder:  # policies that are not named may be scored as well
        return ["prompt_ids"]
    recorded = [f"{name}_log_probs" for name in dict.fromkeys(pair) if name not in scored]
    return [*(["prompt_ids"] if scored else []), *recorded]


def wanted_policies(
    table: Table,
    *,
    policies: Policies = (),
    model: str | Path | None = None,
    ladder: str | Sequence[str] = (),
    noise_floor: bool = False,
    progress: Progress = SILENT,
) -> list[PolicySpec]:
    """Return the policies to score.

    With `model` alone they are those of the default pair that the table lacks. Policies of a ladder
    that are in the table are not scored again, and those that need a GPU are left out if there is
    none. With `noise_floor` one policy is scored once more, in other batches.
    """
    default_model = None if model is None else str(model)
    ladders = [ladder] if isinstance(ladder, str) else list(ladder)
    texts = policy_texts(policies)
    steps = [text for name in ladders for text in LADDERS[one_of("ladder", name, LADDERS)]]
    for text in dict.fromkeys(steps):
        name = text.partition("=")[0]
        if name in table.policies:
            progress.say(f"{name}: already in the table")
        elif text in NEED_A_GPU and not gpus_here():
            progress.say(
                f"{name}: left out, it needs a GPU and there is none here; "
                f"{setting('policies', text, '--policy')} scores it anyway"
            )
        else:
            texts.append(text)
    if not texts and not ladders and default_model is not None:
        defaults = default_policies().items()
        texts = [text for name, text in defaults if name not in table.policies]
        if not texts and not noise_floor:
            progress.say(
                f"{setting('model', default_model)} is not used: the table has both log-prob "
                f"columns; {setting('policies', 'NAME=hf:float32', '--policy')} scores another one"
            )
    specs = [parse_policy(text, default_model) for text in texts]
    if not noise_floor:
        return specs
    about = table.metadata.get("policies", {}).values()
    recorded = [spec for policy in about if (spec := spec_of(policy, default_model)) is not None]
    return [*specs, second_run(policy_to_repeat(specs or recorded))]


def check_used(
    table: Table,
    specs: Sequence[PolicySpec],
    pair: ChosenPair,
    policies: Policies,
    ladder: str | Sequence[str],
    model: str | Path | None,
) -> None:
    """Refuse policies that would be scored, but neither compared nor saved.

    `policies`, `ladder` and `model` are what the user asked for.
    """
    scored = [spec.name for spec in specs if not spec.options.get("repeat_of")]
    # A policy with the sampler's experts is not of the pair: what they explain is read off it.
    replays = any(spec.options.get("experts") == pair.behavior for spec in specs)
    if not scored or replays or {pair.behavior, pair.target} & set(scored):
        return
    words = ["rcdiag compare", table.on_command_line]
    words += [f"--policy {quote(text)}" for text in policy_texts(policies)]
    words += [f"--ladder {name}" for name in ([ladder] if isinstance(ladder, str) else ladder)]
    words += [] if model is None else [f"--model {quote(str(model))}"]
    first = scored[0] if len(scored) > 1 else pair.behavior
    raise RcdiagError(
        f"{', '.join(scored)} would be scored and then not used: the pair is {pair.behavior} "
        f"and {pair.target}",
        hint=f"compare every pair: {' '.join(words)}; or name a pair: "
        f"{setting('behavior', first)}, {setting('target', scored[-1])}; or keep "
        f"the columns: {setting('output', 'FILE', '-o')}",
    )


def check_output(output: Destination | None, specs: Sequence[PolicySpec], *, force: bool) -> None:
    """Refuse to overwrite the table that scoring is to write.

    An existing output may be from a run of the same plan that was killed after its last rename; the
    scoring run checks that, and refuses the output of any other run.
    """
    if output is None:
        return
    output.check_free(force=force)
    is_file = output.path.is_file() and not output.path.is_symlink()
    may_be_finished = bool(specs) and is_file
    if not may_be_finished:
        check_outputs([output.path], force=force, into_streams=False)


def planned(
    table: Table,
    specs: Sequence[PolicySpec],
    output: Destination | None,
    *,
    force: bool,
    progress: Progress = SILENT,
) -> ScoringPlan | None:
    """Check models and rows, and cut the table into parts; None if there is nothing to score."""
    if not specs:
        return None
    from rcdiag.engines.scoring import plan_scoring  # most tables bring their log-probs

    path = Path("scored.parquet") if output is None else output.path
    return plan_scoring(table, specs, path, progress.say, force=force)


@contextlib.contextmanager
def scored_table(
    table: Table,
    plan: ScoringPlan | None,
    output: Destination | None,
    *,
    force: bool,
    progress: Progress = SILENT,
    runner: Runner,
) -> Iterator[Table]:
    """Yield the table with the planned policies filled in, for the duration of the block.

    Engines run where `runner` says. The table is written to `output`, or without one to a temporary
    folder that is deleted at the end of the block.
    """
    if plan is None:
        if output is not None:
            progress.say(f"nothing to score: {output} is not written")
        yield table
        return
    scratch: Path | None = None
    uploaded: Path | None = None
    if output is None:
        progress.say("the scored log-probs are not kept; rcdiag score ... -o FILE keeps them")
        scratch = Path(tempfile.mkdtemp(prefix="rcdiag-"))
        plan = replace(plan, output=scratch / "scored.parquet")
    try:
        # Without `force` a local file that still waits for its upload is used only if it is of this
        # plan.
        again = force and not (output is not None and output.url)
        _run(plan, progress, runner, force=again, kept=output is not None)
        if output is not None and output.url:
            progress.say(f"uploading {output.path} to {output}")
            output.upload()
            uploaded = output.path
            progress.say(f"wrote {output}")
        elif output is not None:
            progress.wrote(output.path)
        yield dataclasses.replace(open_written(plan.output), made_from=table.as_given)
    except RcdiagError as error:
        # A failed engine's log must stay where the error says it is.
        points_there = scratch is not None and str(scratch) in error.hint
        scratch = None if points_there else scratch
        raise
    finally:
        if scratch is not None:
            shutil.rmtree(scratch)
        if uploaded is not None:
            uploaded.unlink()


def _run(plan: ScoringPlan, progress: Progress, runner: Runner, *, force: bool, kept: bool) -> None:
    """Score the planned policies; on an interrupt add a note on how to resume."""
    from rcdiag.engines.scoring import run_scoring

    try:
        run_scoring(plan, progress.tokens, progress.say, runner, force=force)
    except KeyboardInterrupt as interrupt:
        parts = plan.finished_parts()
        if parts and kept:
            interrupt.add_note(
                f"{len(parts)} finished parts are in {plan.parts}: the same command goes on from "
                "them"
            )
        elif parts:
            interrupt.add_note("nothing is kept; rcdiag score ... -o FILE keeps finished parts")
        elif kept:
            interrupt.add_note("no part was finished: a rerun starts from scratch")
        raise
