"""Score the policies that a table lacks, in parts that survive a kill, and join the parts."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from msgspec import Struct

from rcdiag.engines import BACKENDS
from rcdiag.engines.backend import Say, describe
from rcdiag.engines.checkpoint import ModelFacts
from rcdiag.engines.interpreter import check_python
from rcdiag.engines.process import Job
from rcdiag.engines.schedule import RunningEngine, Schedule, ScoredPart, TablePart
from rcdiag.engines.scored_by import RATES, TOKENS, facts_of, notes_of, rate_of, unlike
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, mapping_setting, setting
from rcdiag.files import not_writable
from rcdiag.table.opening import open_table
from rcdiag.table.parts import about_part, read_part, score_columns, score_table, write_part
from rcdiag.table.stream import columns_needed, decode, joined, read_chunks, whole
from rcdiag.table.survey import Survey, survey
from rcdiag.table.table import RowRange, Table
from rcdiag.table.trajectories import POLICY_NAME, Trajectories
from rcdiag.table.writer import TableWriter

# One part: what a kill can cost at most, and what rows are sorted by length within. A backend may
# ask for more rows in it, up to a size that still passes through a pipe in no time.
TOKENS_PER_PART, MOST_TOKENS_PER_PART = 131_072, 2_097_152
# Ids of a part in columns with a list for each token, such as kept ids: 64 MB.
MOST_IDS_PER_PART = 16_777_216

OnTokens = Callable[[str, int, int], None]  # policy, tokens scored so far, tokens in all


class StartsEngines(Protocol):
    """Something that starts engines: on this machine, on its GPUs, on a cluster."""

    def engines(self, spec: PolicySpec) -> int:
        """Return how many engines of a policy work side by side."""
        ...

    def start(self, job: Job, number: int) -> RunningEngine:
        """Start one of these engines, `number` counted from 0."""
        ...

    def idle(self, spec: PolicySpec) -> str:
        """Say how many GPUs no engine uses and what would use them; nothing where all work."""
        ...


class ScoringPlan(Struct, frozen=True, kw_only=True):
    """Everything that decides the scores; the parts on disk are keyed by it."""

    dump: Table
    specs: tuple[PolicySpec, ...]
    survey: Survey
    ranges: list[RowRange]
    output: Path
    facts: dict[str, ModelFacts]  # by policy
    tokens_per_part: int

    @property
    def parts(self) -> Path:
        return self.output.with_name(self.output.name + ".parts")

    def key(self, spec: PolicySpec) -> str:
        """Hash all that decides the scores of a policy; its parts lie in a folder of that name."""
        deciding = [
            BACKENDS[spec.backend].deciding(spec),
            self.facts[spec.name].fingerprint,
            self.facts[spec.name].program,
            self.dump.fingerprint,
            dict(self.dump.renames),
            dict(self.dump.given),
            self.tokens_per_part,
        ]
        return hashlib.blake2b(json.dumps(deciding).encode(), digest_size=6).hexdigest()

    @property
    def run_key(self) -> str:
        return "-".join(self.key(spec) for spec in self.specs)

    def folder(self, spec: PolicySpec) -> Path:
        return self.parts / f"{spec.name}-{self.key(spec)}"

    def part_names(self) -> dict[str, RowRange]:
        return {f"{index:06d}.parquet": rows for index, rows in enumerate(self.ranges)}

    def finished_parts(self) -> list[Path]:
        """Return the parts that are on disk, of all policies."""
        files = (self.folder(spec) / name for spec in self.specs for name in self.part_names())
        return [file for file in files if file.exists()]

    def abouts(self, spec: PolicySpec) -> dict[str, dict[str, Any]]:
        """Return what engines say of themselves in the parts of a policy that are on disk."""
        folder = self.folder(spec)
        found = {
            name: about_part(folder / name, end - first)
            for name, (first, end) in self.part_names().items()
        }
        return {name: about for name, about in found.items() if about is not None}

    def is_finished(self, *, force: bool) -> bool:
        """Tell whether the output exists and is this plan's: a run was killed after its rename.

        With `force` an output without parts beside it is that of an earlier run, to be made again.
        """
        if not self.output.is_file() or (force and not self.parts.exists()):
            return False
        try:
            made = open_table(self.output, format="parquet")
            is_ours = made.metadata.get("run_key") == self.run_key
        except RcdiagError:
            return False
        scored = {f"{spec.name}_log_probs" for spec in self.specs}
        return is_ours and made.num_rows == self.dump.num_rows and scored <= set(made.columns)


def plan_scoring(
    dump: Table, specs: Sequence[PolicySpec], output: Path, say: Say, *, force: bool = False
) -> ScoringPlan:
    """Check models and rows, and cut the table into parts, without starting an engine.

    `say` takes a sentence where a server is waited for.
    """
    _check_names(dump, specs, force)
    for spec in specs:
        check_python(spec, BACKENDS[spec.backend])
        BACKENDS[spec.backend].check(spec)
    facts = {spec.name: BACKENDS[spec.backend].facts(spec, say) for spec in specs}
    limits = list(dict.fromkeys(fact.limits for fact in facts.values()))
    reads = dict.fromkeys(name for spec in specs for name in BACKENDS[spec.backend].reads(spec))
    table_survey = survey(dump, limits, list(reads))
    rows = max((BACKENDS[spec.backend].rows_per_part(spec.options) for spec in specs), default=1)
    mean = table_survey.tokens / max(len(table_survey.lengths), 1)
    tokens = max(TOKENS_PER_PART, min(int(rows * mean), MOST_TOKENS_PER_PART))
    ids_per_token = table_survey.ids_in_lists / max(table_survey.tokens, 1)
    tokens = min(tokens, max(int(MOST_IDS_PER_PART / max(ids_per_token, 1.0)), 1))
    return ScoringPlan(
        dump=dump,
        specs=tuple(specs),
        survey=table_survey,
        ranges=table_survey.ranges(tokens),
        output=output,
        facts=facts,
        tokens_per_part=tokens,
    )


def _check_names(dump: Table, specs: Sequence[PolicySpec], force: bool) -> None:
    names = [spec.name for spec in specs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise RcdiagError(
            f"policy `{min(twice)}` is given twice", hint="give each policy its own name"
        )
    for name in names:
        if name in dump.policies and not force:
            raise RcdiagError(
                f"{dump.name}: `{name}_log_probs` is recorded; scoring would overwrite it",
                hint="score it under another name: "
                f"{mapping_setting('policies', {f'{name}_2': '...'}, '--policy')}; or take "
                f"{setting('force')}",
            )


def run_scoring(
    plan: ScoringPlan, on_tokens: OnTokens, say: Say, runner: StartsEngines, *, force: bool = False
) -> None:
    """Score what the plan names, by the engines that `runner` starts, and write `plan.output`.

    Finished parts are kept beside it until then: after a kill the same call goes on from them.
    `say` takes a sentence before each model is loaded, `on_tokens` the tokens as they are scored.
    """
    if plan.is_finished(force=force):
        _remove_parts(plan, say)
        return
    if plan.output.exists() and not force:
        raise RcdiagError(
            f"{plan.output}: already there", hint=f"another path, or {setting('force')}"
        )
    with _only_run(plan):
        abouts = {
            spec.name: _score_policy(plan, spec, on_tokens, say, runner) for spec in plan.specs
        }
        _join(plan, abouts)
        _remove_parts(plan, say)


LOCK = ".lock"
# What runs leave in the folder of a policy's parts; `NAME-KEY` is the folder's name.
PART_FOLDER = re.compile(rf"{POLICY_NAME.pattern}-[0-9a-f]{{12}}")
PART_FILE = re.compile(
    r"\d{6}\.parquet|(job|provenance)\.json|engine\d*\.log|\..+\.tmp"
    r"|(input|output)\.parquet(\.tmp)?"  # of a program that scores
)


@contextlib.contextmanager
def _only_run(plan: ScoringPlan) -> Iterator[None]:
    """Hold the folder of parts as long as the block lasts; a second run on one output is refused.

    The system lets go of the lock when this process ends, however it ends.
    """
    if plan.parts.is_symlink() or (plan.parts.exists() and not plan.parts.is_dir()):
        raise RcdiagError(
            f"{plan.parts}: not a folder of this output's parts, which lie there while it is made",
            hint="remove it, or choose another output path",
        )
    try:
        plan.parts.mkdir(parents=True, exist_ok=True)
        lock = os.open(plan.parts / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise not_writable(plan.output, error) from error
    try:
        if not _locked(lock, plan.parts / LOCK):
            raise RcdiagError(
                f"{plan.output}: another run is writing it",
                hint="wait for that run, or choose another output path",
            )
        yield
    finally:
        os.close(lock)


def _locked(lock: int, path: Path) -> bool:
    """Lock an open file; False where another process has it, or has ended and removed it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _remove_parts(plan: ScoringPlan, say: Say) -> None:
    """Remove what runs on this output left beside it, and no other file."""
    if plan.parts.is_symlink() or not plan.parts.is_dir():
        return
    for folder in plan.parts.iterdir():
        if PART_FOLDER.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
            for file in folder.iterdir():
                if PART_FILE.fullmatch(file.name):
                    file.unlink()
            with contextlib.suppress(OSError):  # it holds something else
                folder.rmdir()
    (plan.parts / LOCK).unlink(missing_ok=True)
    try:
        plan.parts.rmdir()
    except OSError:
        say(f"{plan.parts} stays: it holds files that rcdiag did not write")


def _score_policy(
    plan: ScoringPlan, spec: PolicySpec, on_tokens: OnTokens, say: Say, runner: StartsEngines
) -> list[dict[str, Any]]:
    """Score the parts of a policy that are missing; return what engines say in all of them."""
    folder = plan.folder(spec)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_writable(plan.output, error) from error
    kept = plan.abouts(spec)
    missing = {name: rows for name, rows in plan.part_names().items() if name not in kept}
    lengths = plan.survey.lengths
    scored_tokens = plan.survey.tokens - sum(int(lengths[a:b].sum()) for a, b in missing.values())

    def advance(tokens: int) -> None:
        nonlocal scored_tokens
        scored_tokens += tokens
        on_tokens(spec.name, scored_tokens, plan.survey.tokens)

    if missing:
        engines = min(runner.engines(spec), len(missing))
        backend = BACKENDS[spec.backend]
        if backend.runs_outside:
            about = {**spec.to_dict(), "dtype": None}  # chosen where it runs
            say(f"scoring {spec.name} by {describe(about, backend.known_options)}")
        else:
            times = "" if engines == 1 else f" {engines} times"
            say(f"loading {spec.model}{times} for {spec.name} ({spec.backend}, {spec.dtype})")
        if idle := runner.idle(spec):
            say(idle)
        job = Job(
            spec=spec,
            max_length=int(lengths.max()),
            folder=folder,
            weights=plan.facts[spec.name].fingerprint,
        )
        parts = _parts(plan, missing, backend.reads(spec))

        def keep(part: TablePart, scored: ScoredPart) -> None:
            _write_part(folder / part.name, spec, part.rows, scored)

        Schedule(parts, lambda number: runner.start(job, number), keep, advance, say).run(engines)
    abouts = list(plan.abouts(spec).values())
    for note in notes_of(abouts):
        say(f"{spec.name}: {note}")
    if differs := unlike(facts_of(abouts)):
        say(f"{spec.name} was scored by {differs}: last digits differ between them")
    return abouts


def _parts(
    plan: ScoringPlan, missing: Mapping[str, RowRange], lists: Sequence[str]
) -> Iterator[TablePart]:
    """Read the rows of parts, one after the other, with the columns that an engine reads."""
    names = [*columns_needed(plan.dump.schema.names, (), prompts=True), *lists]
    chunks = read_chunks(plan.dump, list(missing.values()), names)
    for name, batches in zip(missing, chunks, strict=True):
        yield TablePart(name=name, rows=decode(whole(batches)))


def _write_part(path: Path, spec: PolicySpec, rows: Trajectories, scored: ScoredPart) -> None:
    """Write the scores of some rows as a file, which appears whole or not at all.

    Columns that have not one number for each response token are refused, whatever engine made them.
    """
    scores, tokens = scored.scores, len(rows.response_ids.values)
    for field in fields(scores):
        values = getattr(scores, field.name)
        if values is None:
            continue
        if values.shape[:1] != (tokens,) or values.dtype.kind not in "fiu":
            raise RcdiagError(
                f"policy `{spec.name}`: {spec.backend} returned {values.size} values of "
                f"{field.name} ({values.dtype}) for the {tokens} response tokens of rows "
                f"{rows.row[0]} to {rows.row[-1]}",
                hint=f"a bug of backend `{spec.backend}`, which owes a number for each token",
            )
    prompts = rows.prompt_ids
    read = tokens + (0 if prompts is None else len(prompts.values))
    table = score_table(spec.name, scores, rows.response_ids.offsets)
    write_part(path, table, {**scored.about, TOKENS: read})


def _join(plan: ScoringPlan, abouts: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Write the table with the scored columns in it, in the order of its rows."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    temperature = {
        "temperature": "of each row",
        "rows_scored_at_temperature_1_because_unknown": plan.survey.rows_without_temperature,
    }
    old = plan.dump.metadata
    policies = {
        spec.name: {
            **facts_of(abouts[spec.name]),
            "options": spec.options,  # parts have those alone that decide the scores
            **temperature,
            "time": now,
        }
        for spec in plan.specs
    }
    rates = {name: rate for name, parts in abouts.items() if (rate := rate_of(parts))}
    metadata = {
        **old,
        "policies": {**old.get("policies", {}), **policies},
        RATES: {**old.get(RATES, {}), **rates},
        "run_key": plan.run_key,
    }
    # The columns of the output: those of the table, then those of the parts.
    first = next(iter(plan.part_names()))
    empty = [read_part(plan.folder(spec) / first).slice(0, 0) for spec in plan.specs]
    schema = _with_scores(plan.dump.schema.empty_table(), empty, plan.specs).schema
    chunks = read_chunks(plan.dump, plan.ranges)
    with TableWriter(plan.output, schema, metadata) as writer:
        for name, batches in zip(plan.part_names(), chunks, strict=True):
            parts = [read_part(plan.folder(spec) / name) for spec in plan.specs]
            writer.write(_with_scores(joined(batches), parts, plan.specs))


def _with_scores(
    table: pa.Table, parts: Sequence[pa.Table], specs: Sequence[PolicySpec]
) -> pa.Table:
    """Put the scores of each policy at the end of `table`, in place of its older ones.

    An entropy that another model left under the same name must not stay beside new log-probs.
    """
    for part, spec in zip(parts, specs, strict=True):
        stale = [name for name in score_columns(spec.name) if name in table.column_names]
        table = table.drop_columns(stale)
        for name in part.column_names:
            table = table.append_column(name, part.column(name))
    return table
