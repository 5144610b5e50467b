"""The results of one dump, gathered for a page; results of different dumps are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from rcdiag.errors import RcdiagError
from rcdiag.pages.headline import dump_name
from rcdiag.results import (
    CompareResult,
    DiagnoseResult,
    Diagnosis,
    ReplayResult,
    Result,
    ScoreResult,
    SweepResult,
)


class DumpResults(Struct, frozen=True, kw_only=True):
    """All results of one dump: at most one of each command."""

    results: Sequence[Result]  # as they were given
    score: ScoreResult | None = None
    compare: CompareResult | None = None
    diagnose: DiagnoseResult | None = None
    sweep: SweepResult | None = None
    replay: ReplayResult | None = None

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Return the diagnosis with the most evidence: that of `diagnose`, if there is one."""
        first = () if self.diagnose is None else (self.diagnose,)
        known = (result.diagnosis for result in (*first, *self.results))
        return next((diagnosis for diagnosis in known if diagnosis is not None), None)

    @property
    def verdict(self) -> str | None:
        """Return the verdict of the diagnosis; None if there is none."""
        return None if self.diagnosis is None else self.diagnosis.verdict

    @property
    def largest(self) -> Result:
        """Return the result with the most tokens, since some commands read a part of a table."""
        return max(self.results, key=lambda result: result.num_tokens)

    @property
    def rows_left_out(self) -> int:
        """Return the number of rows left out of the numbers because of invalid log-probs."""
        return getattr(self.largest, "rows_left_out", 0)

    @property
    def measured_sequences(self) -> int:
        """Return the number of sequences that the numbers cover."""
        return self.largest.num_sequences - self.rows_left_out

    @property
    def dump(self) -> str:
        """Return the name of the dump."""
        return dump_name(self.results[0])

    @property
    def pair(self) -> tuple[str, str]:
        """Return behavior and target of the page; the target is "" if there is one policy."""
        for result in (self.score, self.sweep):
            if result is not None:
                return result.behavior, result.target
        if self.diagnosis is not None:
            pair = self.diagnosis.pair or {}
            return pair.get("sampler") or "", pair.get("trainer") or ""
        if self.compare is not None and self.compare.ladder.policies:
            return self.compare.ladder.policies[0], self.compare.ladder.policies[-1]
        if self.replay is not None:
            return self.replay.rollout, self.replay.old
        return "", ""

    @property
    def weights_help(self) -> bool:
        """Tell whether importance weights can repair the mismatch: not if it is broken."""
        return self.diagnosis is None or self.diagnosis.verdict != "broken"


def merged(results: Sequence[Result]) -> DumpResults:
    """Gather results of one dump, at most one of each command."""
    if not results:
        raise RcdiagError("no result for a page", hint="give at least one result file")
    by_kind: dict[str, Any] = {}
    for result in results:
        for name in ("fingerprint", "rows", "rows_drawn"):
            one, two = (one.provenance.get(name) for one in (results[0], result))
            _equal(f"provenance.{name}", one, two, results[0], result)
        if result.kind in by_kind:
            raise RcdiagError(
                f"two results of `rcdiag {result.kind}` for one page"
                f"{_first_difference(by_kind[result.kind], result)}",
                hint="a page shows one result of each command: make a separate page for the "
                "other, or compare them side by side with --against",
            )
        by_kind[result.kind] = result
    pairs = [r for r in results if isinstance(r, (ScoreResult, SweepResult))]
    for other in pairs[1:]:
        for field in ("behavior", "target"):
            _equal(field, getattr(pairs[0], field), getattr(other, field), pairs[0], other)
    return DumpResults(results=tuple(results), **by_kind)


def _equal(field: str, one: Any, two: Any, first: Result, other: Result) -> None:
    """Refuse two results for one page where a fact about their data differs."""
    if one == two:
        return
    dumps = [", ".join(map(str, result.provenance.get("dump", []))) for result in (first, other)]
    raise RcdiagError(
        f"results of different data for one page: `{field}` is {_shown(one)} in the result of "
        f"`{first.kind}` ({dumps[0]}) and {_shown(two)} in that of `{other.kind}` ({dumps[1]})",
        hint="give results of one dump and one pair of policies; --against compares two dumps "
        "side by side",
    )


def _first_difference(first: Any, other: Any) -> str:
    for field in ("behavior", "target", "trainer", "step"):
        one, two = getattr(first, field, None), getattr(other, field, None)
        if one != two:
            return f": `{field}` is {_shown(one)} and {_shown(two)}"
    names = (name for name, fact in first.provenance.items() if fact != other.provenance.get(name))
    changed = next(names, None)
    return "" if changed is None else f": `provenance.{changed}` differs"


def _shown(value: Any) -> str:
    return "not given" if value is None else str(value)
