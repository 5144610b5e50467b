"""Make Polars frames of results: a row for each number, correction, pair, setting or preset.

The frame `tidy`, which comes without a name and which `--csv` writes, has the same columns for
every kind of result: one row for each metric and step.

Columns follow from the fields of a result: numbers, words and truth values are columns, a number
with an interval becomes three (`ess_seq`, `ess_seq_low`, `ess_seq_high`), a part of a result is
flattened with its name as a prefix (`gradient_norm`), lists and dicts are left out.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from rcdiag.errors import one_of
from rcdiag.files import csv_cell
from rcdiag.results.base import Finding, MetricValue
from rcdiag.results.compare import CompareResult, PolicySummary, Rung
from rcdiag.results.convert import ConvertResult
from rcdiag.results.correction import CorrectionNumbers, CorrectionResult
from rcdiag.results.diagnose import DiagnoseResult, ExperimentResult
from rcdiag.results.diagnosis import NamedCause
from rcdiag.results.doc import Number
from rcdiag.results.replay import PresetReplay, ReplayResult
from rcdiag.results.score import ScoreResult
from rcdiag.results.sweep import Candidate, SweepResult, SweepRow

if TYPE_CHECKING:
    import polars as pl

Row = dict[str, Any]
Columns = Mapping[str, type]  # name -> int, float, str or bool

NUMBER: Columns = {"value": float, "low": float, "high": float}
METRIC: Columns = {"metric": str, **NUMBER, "level": str}
# `name` is what the metric describes beside the policies: a preset, a setting or a candidate.
TIDY: Columns = {"kind": str, "step": int, "policies": str, "name": str, **METRIC}


# A function from a result to the columns and the rows of one frame.
Frame = Callable[[Any], tuple[Columns, Iterable[Row]]]


def frame(result: Any, name: str | None = None) -> pl.DataFrame:
    """Return the frame of that name, by default the first one of the result's kind."""
    import polars as pl

    frames = FRAMES[result.kind]
    chosen = next(iter(frames)) if name is None else one_of("frame", name, frames)
    dtypes = {int: pl.Int64, float: pl.Float64, str: pl.String, bool: pl.Boolean}
    columns, made = frames[chosen](result)
    rows = list(made)
    return pl.DataFrame(
        {
            column: pl.Series(column, [row.get(column) for row in rows], dtypes[kind], strict=False)
            for column, kind in columns.items()
        }
    )


@cache
def columns_of(kind: type) -> dict[str, type]:
    """Return the columns that a struct or TypedDict of a result turns into, with their types."""
    columns: dict[str, type] = {}
    for name, hint in typing.get_type_hints(kind).items():
        plain = _plain(hint)
        if plain is MetricValue:
            columns |= {name: float, f"{name}_low": float, f"{name}_high": float}
        elif plain in (int, float, str, bool):
            columns[name] = plain
        elif isinstance(plain, type) and issubclass(plain, Struct):
            columns |= {f"{name}_{column}": held for column, held in columns_of(plain).items()}
    return columns


def row_of(part: Any) -> Row:
    """Return the values of one part of a result, by column."""
    row: Row = {}
    fields = part if isinstance(part, Mapping) else _fields(part)
    for name, value in fields.items():
        if isinstance(value, MetricValue):
            row |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        elif isinstance(value, (Struct, Mapping)):
            row |= {f"{name}_{column}": cell for column, cell in row_of(value).items()}
        else:
            row[name] = value
    return row


def _fields(part: Struct) -> Row:
    return {name: getattr(part, name) for name in part.__struct_fields__}


def _plain(hint: Any) -> Any:
    """Return the one type that a hint allows beside None; None where it allows several."""
    if hint is Number:
        return float
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return _plain(kinds[0]) if len(kinds) == 1 else None
    if typing.get_origin(hint) is typing.Literal:
        return type(typing.get_args(hint)[0])
    return hint


def _metrics(values: Mapping[str, MetricValue]) -> Iterator[Row]:
    for name, value in values.items():
        yield {"metric": name, **_fields(value)}


def _mismatch(result: ScoreResult) -> Iterator[Row]:
    """Yield the metrics of the whole table, without a step, then those of every step."""
    yield from _metrics(result.mismatch)
    for step, part in result.steps.items():
        yield from ({"step": int(step), **row} for row in _metrics(part.mismatch))


def _by_step(result: ScoreResult) -> Iterator[tuple[int | None, str, CorrectionResult]]:
    """Yield the step, None for the whole table, the preset and the result of every correction."""
    for name, correction in result.corrections.items():
        yield None, name, correction
    for step, part in result.steps.items():
        for name, correction in part.corrections.items():
            yield int(step), name, correction


def _corrections(result: ScoreResult) -> tuple[Columns, Iterable[Row]]:
    numbers = {**columns_of(CorrectionResult), **columns_of(CorrectionNumbers)}
    return {"step": int, "preset": str, **numbers}, (
        {"step": step, "preset": name, **row_of(correction), **correction.actual}
        for step, name, correction in _by_step(result)
    )


def _logged(
    parts: Iterable[tuple[int | None, str, CorrectionResult | PresetReplay]],
) -> tuple[Columns, Iterable[Row]]:
    """Return a row for every number that a trainer logs, with its step and preset."""
    return {"step": int, "preset": str, "metric": str, "value": float}, (
        {"step": step, "preset": name, "metric": key, "value": value}
        for step, name, part in parts
        for key, value in part.metrics.items()
    )


def _numbers(part: Any, prefix: str = "") -> Iterator[Row]:
    """Yield the numbers of one part of a result, those of nested parts under a prefix."""
    for name, value in _fields(part).items():
        if isinstance(value, MetricValue):
            yield {"metric": prefix + name, **_fields(value)}
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield {"metric": prefix + name, "value": value}
        elif isinstance(value, Struct):
            yield from _numbers(value, f"{prefix}{name}_")


def _tidy_score(result: ScoreResult) -> Iterator[Row]:
    for row in _mismatch(result):
        yield {"policies": f"{result.behavior}->{result.target}", **row}


def _tidy_compare(result: CompareResult) -> Iterator[Row]:
    for name, pair in result.pairs.items():
        yield from ({"policies": name, **row} for row in _metrics(pair.mismatch))


def _tidy_sweep(result: SweepResult) -> Iterator[Row]:
    """Yield the settings, by the names that `--candidate` takes, then the candidates."""
    policies = f"{result.behavior}->{result.target}"
    for family, about in result.families.items():
        for setting in about.rows:
            bounds = (f"{bound:.12g}" for bound in setting.bounds.values())
            name = "_".join([family, *bounds])
            yield from ({"policies": policies, "name": name, **row} for row in _numbers(setting))
    for each in result.recommendation.candidates:
        yield from ({"policies": policies, "name": each.name, **row} for row in _numbers(each))


def _tidy_replay(result: ReplayResult) -> Iterator[Row]:
    """Yield the numbers of every preset, then what the trainer logs, under its own keys."""
    policies = "->".join(name for name in (result.rollout, result.old, result.current) if name)
    for step, name, replay in _presets(result):
        logged = ({"metric": key, "value": value} for key, value in replay.metrics.items())
        for row in (*_numbers(replay), *logged):
            yield {"step": step, "policies": policies, "name": name, **row}


def _tidy_diagnose(result: DiagnoseResult) -> Iterator[Row]:
    """Yield the numbers of every experiment, named by its cause and setting."""
    for one in result.experiments:
        name = f"{one.cause}: {one.setting}"
        yield from ({"policies": one.column, "name": name, **row} for row in _numbers(one))


def _tidy_convert(result: ConvertResult) -> Iterator[Row]:
    """Yield the sizes of the table that a conversion wrote."""
    for name in ("rows", "tokens", "files"):
        yield {
            "policies": ", ".join(result.policies),
            "metric": name,
            "value": getattr(result, name),
        }


def _tidy(rows: Callable[[Any], Iterator[Row]]) -> Frame:
    """Return the function that makes the frame `tidy` of a kind of result."""
    return lambda result: (TIDY, ({"kind": result.kind, **row} for row in rows(result)))


def _pairs(result: CompareResult) -> tuple[Columns, Iterable[Row]]:
    return {"behavior": str, "target": str, **METRIC}, (
        {"behavior": pair.behavior, "target": pair.target, **row}
        for pair in result.pairs.values()
        for row in _metrics(pair.mismatch)
    )


def _settings(result: SweepResult) -> tuple[Columns, Iterable[Row]]:
    """Return a row for each setting, with a column for every bound of any family."""
    settings = [(name, row) for name, family in result.families.items() for row in family.rows]
    bounds = dict.fromkeys((bound for _, row in settings for bound in row.bounds), float)
    return {"family": str, **bounds, **columns_of(SweepRow)}, (
        {"family": name, **row.bounds, **row_of(row)} for name, row in settings
    )


def _presets(result: ReplayResult) -> Iterator[tuple[int | None, str, PresetReplay]]:
    """Yield the step, the preset and the numbers of every replay, for all steps."""
    if not result.steps:
        yield from ((result.step, *named) for named in result.presets.items())
    for part in result.steps:
        yield from ((part.step, *named) for named in part.presets.items())


def _parts(kind: type, parts: Callable[[Any], Iterable[Any]], **labels: type) -> Frame:
    """Return the function that makes a frame with a row for each part of one kind.

    With `labels`, `parts` returns tuples: the values of these columns, then the part.
    """

    def frame_of(result: Any) -> tuple[Columns, Iterable[Row]]:
        rows: list[Row] = []
        for held in parts(result):
            *values, part = held if labels else (held,)
            rows.append({**dict(zip(labels, values, strict=True)), **row_of(part)})
        return {**labels, **columns_of(kind)}, rows

    return frame_of


FINDINGS = _parts(Finding, lambda result: result.findings)
# Kind of result -> name of the frame -> frame; the first one is the default.
FRAMES: dict[str, dict[str, Frame]] = {
    "score": {
        "tidy": _tidy(_tidy_score),
        "metrics": lambda result: ({"step": int, **METRIC}, _mismatch(result)),
        "corrections": _corrections,
        "logged": lambda result: _logged(_by_step(result)),
        "findings": FINDINGS,
    },
    "compare": {
        "tidy": _tidy(_tidy_compare),
        "pairs": _pairs,
        "policies": _parts(PolicySummary, lambda result: result.policies.items(), policy=str),
        "ladder": _parts(Rung, lambda result: result.ladder.rungs),
        "findings": FINDINGS,
    },
    "diagnose": {
        "tidy": _tidy(_tidy_diagnose),
        "experiments": _parts(ExperimentResult, lambda result: result.experiments),
        "causes": _parts(
            NamedCause, lambda result: result.diagnosis.causes if result.diagnosis else ()
        ),
        "findings": FINDINGS,
    },
    "sweep": {
        "tidy": _tidy(_tidy_sweep),
        "settings": _settings,
        "candidates": _parts(Candidate, lambda result: result.recommendation.candidates),
        "findings": FINDINGS,
    },
    "replay": {
        "tidy": _tidy(_tidy_replay),
        "presets": _parts(PresetReplay, _presets, step=int, preset=str),
        "logged": lambda result: _logged(_presets(result)),
        "findings": FINDINGS,
    },
    "convert": {
        "tidy": _tidy(_tidy_convert),
        "changes": lambda result: (
            {"change": str, "rows": int},
            ({"change": text, "rows": rows} for text, rows in result.changes.items()),
        ),
    },
}


def csv_of(frame: pl.DataFrame) -> str:
    """Return a frame as CSV, with its text escaped so that spreadsheets run no formulas."""
    import polars as pl

    text = pl.selectors.string()
    return frame.with_columns(text.map_elements(csv_cell, return_dtype=pl.String)).write_csv()
