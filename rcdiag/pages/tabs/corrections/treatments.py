"""What each correction does to the table: presets and swept settings, equal ones merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from rcdiag.pages.merge import DumpResults
from rcdiag.pages.sweep.words import as_good, error
from rcdiag.results import CorrectionResult, SweepResult, SweepRow
from rcdiag.results.sweep import Candidate

NONE = "none"  # the candidate without any correction


class Treatment(Struct, frozen=True, kw_only=True):
    """The effect of a correction on the table, shared by presets and candidates that equal it."""

    names: tuple[str, ...]
    kept_tokens: int
    kept_sequences: int
    ess_token: float | None
    ess_seq: float | None
    bias: float | None = None
    variance: float | None = None
    bias_bound: float | None = None
    lost: float | None = None
    level: str = ""
    untouched: bool = False  # has no weights and rejects nothing
    candidate: Candidate | None = None
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the numbers by which equal corrections are recognised."""
        sizes = (_digits(self.ess_token), _digits(self.ess_seq))
        return (self.kept_tokens, self.kept_sequences, *sizes)

    @property
    def error(self) -> float | None:
        """Return the expected squared error of the gradient, relative to uncorrected variance."""
        return None if self.candidate is None else error(self.candidate)


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.7g}")


def treatments_of(results: DumpResults) -> list[Treatment]:
    """Return the effects of all presets and candidates, merged if equal, in table order."""
    merged: dict[tuple[Any, ...], Treatment] = {}
    for treatment in (*_of_presets(results), *_of_candidates(results.sweep)):
        known = merged.get(treatment.key)
        merged[treatment.key] = treatment if known is None else _joined(known, treatment)

    def order(treatment: Treatment) -> tuple[bool, float]:
        """Sort by expected error, then refused ones, then those without an estimate."""
        if not results.weights_help or treatment.error is None:
            return (True, float("inf"))
        return (
            treatment.candidate is not None and bool(treatment.candidate.refused),
            treatment.error,
        )

    return sorted(merged.values(), key=order)


def _joined(one: Treatment, other: Treatment) -> Treatment:
    """Merge two equal treatments, filling missing values of one from the other."""
    filled = {
        name: value
        for name in ("bias", "variance", "bias_bound", "lost", "candidate")
        if getattr(one, name) is None and (value := getattr(other, name)) is not None
    }
    names = tuple(dict.fromkeys([*one.names, *other.names]))
    names = (NONE, *(name for name in names if name != NONE)) if NONE in names else names
    untouched = one.untouched or other.untouched
    level = one.level or other.level
    return replace(one, names=names, level=level, untouched=untouched, **filled)


def _of_presets(results: DumpResults) -> list[Treatment]:
    """Return the effects of all presets, with bias and variance of an equal swept setting."""
    if results.score is None:
        return []
    families = {} if results.sweep is None else results.sweep.families
    rows = (_of_row("", row) for family in families.values() for row in family.rows)
    swept = {row.key: row for row in rows}
    made = []
    for name, correction in results.score.corrections.items():
        treatment = _of_preset(name, correction, results.score.num_tokens)
        if (row := swept.get(treatment.key)) is not None:
            treatment = replace(treatment, bias=row.bias, variance=row.variance)
        made.append(treatment)
    return made


def _of_preset(name: str, correction: CorrectionResult, tokens: int) -> Treatment:
    actual = correction.actual
    return Treatment(
        names=(name,),
        kept_tokens=correction.kept_tokens,
        kept_sequences=correction.kept_sequences,
        ess_token=actual["ess_token_applied"],
        ess_seq=actual["ess_seq_applied"],
        bias_bound=actual["bias_bound"],
        lost=correction.lost_mass,
        level=correction.level or "",
        untouched=correction.weight_sum is None and correction.kept_tokens == tokens,
    )


def _of_row(name: str, row: SweepRow) -> Treatment:
    return Treatment(
        names=(name,),
        kept_tokens=row.kept_tokens,
        kept_sequences=row.kept_sequences,
        ess_token=row.ess_token_applied,
        ess_seq=row.ess_seq_applied.value,
        bias=row.weight_distance,
        variance=row.weight_variance,
        bias_bound=row.bias_bound,
        lost=row.lost_mass.value,
    )


def _of_candidates(sweep: SweepResult | None) -> list[Treatment]:
    if sweep is None:
        return []
    made = []
    for candidate in sweep.recommendation.candidates:
        family = sweep.families.get(candidate.family)
        rows = [] if family is None else family.rows
        row = next((row for row in rows if row.bounds == candidate.bounds), None)
        if row is not None:
            made.append(replace(_of_row(candidate.name, row), candidate=candidate))
        elif candidate.name == NONE:
            whole = Treatment(
                names=(NONE,),
                kept_tokens=sweep.num_tokens,
                kept_sequences=sweep.num_sequences,
                ess_token=1.0,
                ess_seq=1.0,
                variance=0.0,
                untouched=True,
                candidate=candidate,
            )
            made.append(whole)
    return made


def recommended(results: DumpResults) -> Treatment | None:
    """Return the treatment that the sweep recommends, with the presets that equal it."""
    choice = None if results.sweep is None else results.sweep.recommendation.choice
    if choice is None or not results.weights_help:
        return None
    return next(
        (treatment for treatment in treatments_of(results) if choice in treatment.names), None
    )


def tag_of(treatment: Treatment, results: DumpResults) -> str:
    """Return the tag of a treatment: recommended, as good, ...; "" if it is worse."""
    sweep = results.sweep
    if sweep is None or not results.weights_help:
        return ""
    if sweep.recommendation.choice in treatment.names:
        return "recommended"
    if set(as_good(sweep.recommendation)) & set(treatment.names):
        return "as good"
    near = set(sweep.recommendation.indistinguishable) & set(treatment.names)
    return "same within error" if near else ""
