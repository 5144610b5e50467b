"""Score the policies that a table lacks, in parts that survive a killed run, and join the parts."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from msgspec import Struct

from rcdiag.engines import BACKENDS
from rcdiag.engines.backend import Say, describe
from rcdiag.engines.checkpoint import ModelFacts
from rcdiag.engines.interpreter import check_python
from rcdiag.engines.parts import about_part, only_run, read_part, remove_parts, write_part
from rcdiag.engines.process import Job
from rcdiag.engines.schedule import RunningEngine, Schedule, ScoredPart, TablePart
from rcdiag.engines.scored_by import RATES, engine_differences, facts_of, notes_of, rate_of
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, mapping_setting, setting
from rcdiag.files import make_own_folder, not_writable
from rcdiag.table.parquet_files import open_written
from rcdiag.table.schema import score_columns
from rcdiag.table.stream import columns_needed, decode, read_chunks
from rcdiag.table.survey import Survey, survey
from rcdiag.table.table import RowRange, Table
from rcdiag.table.writer import TableWriter

# Size of a part: a killed run loses at most one part for each engine, and rows are sorted by length
# within a part. A backend may ask for more rows, up to a size that a pipe still transfers quickly.
TOKENS_PER_PART, MOST_TOKENS_PER_PART = 131_072, 2_097_152
# Limit on the ids of a part in columns that hold a list for each token, such as kept ids: 64 MB.
MOST_IDS_PER_PART = 16_777_216

OnTokens = Callable[[str, int, int], None]  # policy, tokens scored so far, tokens in all


class EngineRunner(Protocol):
    """A runner that starts engines: on this machine, on its GPUs or on a cluster."""

    def engines(self, spec: PolicySpec) -> int:
        """Return how many engines of a policy run side by side."""
        ...

    def start(self, job: Job, number: int) -> RunningEngine:
        """Start engine `number` of a job, counted from 0."""
        ...

    def idle(self, spec: PolicySpec) -> str:
        """Say how many GPUs stay unused and which option would use them; "" if all are used."""
        ...


class ScoringPlan(Struct, frozen=True, kw_only=True):
    """Everything that the scores depend on; folders of parts are named by a hash of it."""

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
        """Hash everything that a policy's scores depend on; the folder of its parts has it."""
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
        """Return the part files of all policies that are on disk."""
        files = (self.folder(spec) / name for spec in self.specs for name in self.part_names())
        return [file for file in files if file.exists()]

    def provenance(self, spec: PolicySpec) -> dict[str, dict[str, Any]]:
        """Return the engine's provenance from each part of a policy that is on disk, by file."""
        folder = self.folder(spec)
        found = {
            name: about_part(folder / name, end - first)
            for name, (first, end) in self.part_names().items()
        }
        return {name: about for name, about in found.items() if about is not None}

    def is_finished(self, *, force: bool) -> bool:
        """Tell whether this plan's output is complete: an earlier run was killed after its rename.

        With `force`, an output without a folder of parts beside it comes from an older run and is
        made again.
        """
        if not self.output.is_file() or (force and not self.parts.exists()):
            return False
        try:
            made = open_written(self.output)
            is_ours = made.metadata.get("run_key") == self.run_key
        except RcdiagError:
            return False
        scored = {f"{spec.name}_log_probs" for spec in self.specs}
        return is_ours and made.num_rows == self.dump.num_rows and scored <= set(made.columns)


def plan_scoring(
    dump: Table, specs: Sequence[PolicySpec], output: Path, say: Say, *, force: bool = False
) -> ScoringPlan:
    """Check models and rows, and cut the table into parts, without starting an engine.

    `say` takes a sentence for the user while a server is waited for.
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
    plan: ScoringPlan, on_tokens: OnTokens, say: Say, runner: EngineRunner, *, force: bool = False
) -> None:
    """Score the policies of a plan with engines that `runner` starts, and write `plan.output`.

    Finished parts stay beside the output until it is complete, so the same call after a kill scores
    only the missing parts. `say` takes a sentence before each model is loaded, `on_tokens` the
    progress in tokens.
    """
    if plan.is_finished(force=force):
        remove_parts(plan.parts, say)
        return
    if plan.output.exists() and not force:
        raise RcdiagError(
            f"{plan.output}: already there", hint=f"another path, or {setting('force')}"
        )
    with only_run(plan.parts, plan.output):
        abouts = {
            spec.name: _score_policy(plan, spec, on_tokens, say, runner) for spec in plan.specs
        }
        _join(plan, abouts)
        remove_parts(plan.parts, say)


def _score_policy(
    plan: ScoringPlan, spec: PolicySpec, on_tokens: OnTokens, say: Say, runner: EngineRunner
) -> list[dict[str, Any]]:
    """Score the missing parts of a policy; return the engines' provenance from all its parts."""
    folder = plan.folder(spec)
    try:
        make_own_folder(folder)
    except OSError as error:
        raise not_writable(plan.output, error) from error
    kept = plan.provenance(spec)
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
            about = {**spec.to_dict(), "dtype": None}  # the server or program chooses the dtype
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
        names = columns_needed(plan.dump.schema.names, (), prompts=True)
        chunks = read_chunks(plan.dump, list(missing.values()), [*names, *backend.reads(spec)])
        parts = (
            TablePart(name=name, rows=decode(chunk))
            for name, chunk in zip(missing, chunks, strict=True)
        )

        def keep(part: TablePart, scored: ScoredPart) -> None:
            write_part(folder / part.name, spec, part.rows, scored)

        Schedule(parts, lambda number: runner.start(job, number), keep, advance, say).run(engines)
    abouts = list(plan.provenance(spec).values())
    for note in notes_of(abouts):
        say(f"{spec.name}: {note}")
    if differs := engine_differences(facts_of(abouts)):
        say(f"{spec.name} was scored by {differs}: last digits differ between them")
    return abouts


def _join(plan: ScoringPlan, abouts: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Write the table with the scored columns added, rows in their original order."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    temperature = {
        "temperature": "of each row",
        "rows_scored_at_temperature_1_because_unknown": plan.survey.rows_without_temperature,
    }
    old = plan.dump.metadata
    policies = {
        spec.name: {
            **facts_of(abouts[spec.name]),
            "options": spec.options,  # parts store only the options that the scores depend on
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
    # Schema of the output: the table's columns, then the score columns of the parts.
    first = next(iter(plan.part_names()))
    empty = [read_part(plan.folder(spec) / first).slice(0, 0) for spec in plan.specs]
    schema = _with_scores(plan.dump.schema.empty_table(), empty, plan.specs).schema
    chunks = read_chunks(plan.dump, plan.ranges)
    with TableWriter(plan.output, schema, metadata) as writer:
        for name, chunk in zip(plan.part_names(), chunks, strict=True):
            parts = [read_part(plan.folder(spec) / name) for spec in plan.specs]
            writer.write(_with_scores(chunk.table, parts, plan.specs))


def _with_scores(
    table: pa.Table, parts: Sequence[pa.Table], specs: Sequence[PolicySpec]
) -> pa.Table:
    """Append the score columns of each policy, in place of columns that it already had.

    An entropy from an earlier scoring under the same name must not stay beside new log-probs.
    """
    for part, spec in zip(parts, specs, strict=True):
        stale = [name for name in score_columns(spec.name) if name in table.column_names]
        table = table.drop_columns(stale)
        for name in part.column_names:
            table = table.append_column(name, part.column(name))
    return table
