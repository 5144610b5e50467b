"""Use case `score`: the mismatch of two recorded policies, or the diagnosis of a single one.

It is one pass over the table; the states of its parts merge into the state of the whole table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from rcdiag.corrections.sequences import Questions, Sequences
from rcdiag.diagnosis.behavior_means import BehaviorMeans, behavior_means, judged_pair
from rcdiag.diagnosis.guides import judged, under_diagnosis, without_numbers
from rcdiag.results import (
    CorrectionResult,
    Diagnosis,
    MetricValue,
    ScoreResult,
    SequenceTokens,
    StepResult,
)
from rcdiag.results.routing import Routing
from rcdiag.runners import Runner
from rcdiag.statistics.accumulator import PairState, Step
from rcdiag.statistics.extremes import NonFinite, RowCount, rows_of_numbers
from rcdiag.statistics.histograms import log_ratio_counts
from rcdiag.statistics.merging import merge
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.profiles import finished
from rcdiag.statistics.rounding import RoundingNoise, rounding_of
from rcdiag.statistics.suite import Suite, SuiteState
from rcdiag.statistics.token_ids import worst_ids
from rcdiag.statistics.weighted import Reweighting, WeightedSuite
from rcdiag.table.free_memory import check_rows_fit
from rcdiag.table.survey import unobserved
from rcdiag.table.table import Table
from rcdiag.table.token_batch import TokenBatch
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.compare.pairs import read_comparison
from rcdiag.usecases.corrected import (
    CorrectionRows,
    answerable,
    asked_by,
    correction_results,
)
from rcdiag.usecases.diagnosed import (
    read_and_diagnose,
    recorded_constants,
    sampler_of,
    with_findings,
)
from rcdiag.usecases.passes import Walk, read_table
from rcdiag.usecases.provenance import provenance
from rcdiag.usecases.reading import Decode, SequenceReader, decoded_examples
from rcdiag.usecases.routing import routing_of
from rcdiag.usecases.shown_sequences import rows_named, with_sequences

if TYPE_CHECKING:
    from rcdiag.logs import Log

# Shares of the tokens with the largest k3, eight per decade, at which their part of k3 is given.
SHARES = [float(f"{10.0 ** (step / 8.0):.6g}") for step in range(-40, 1)]


def score(
    dump: Table,
    *,
    behavior: str = "rollout",
    target: str = "old",
    seed: int = 0,
    decode: Decode | None = None,
    text: bool = True,
    plan: Plan | None = None,
    pair_reason: str | None = None,
    log: Log | None = None,
    sequences: Sequence[int] | None = (),
    runner: Runner | None = None,
) -> ScoreResult:
    """Compute the mismatch of two recorded policies over all steps and per step, and corrections.

    `pair_reason` says why these two were chosen, if the user named none. `log` is the trainer's
    own log, which is compared with the plan's numbers. `sequences` are numbers of rows that the
    result is to hold in full; with None it holds no sequences, and the table is read only once.
    `runner` says where the pass over the table runs; by default in this process. With `decode` the
    result has the text of the tokens that it names; without it, and with `text`, the worst
    sequences have the text from columns of the table.
    """
    check_rows_fit(dump)
    asked = rows_named(dump.as_given, sequences or ())
    plan = None if plan is None else answerable(plan, dump)
    walk = PairWalk.of(dump, behavior, target, plan)
    routing = routing_of(dump, behavior, target)
    reading, diagnosis = _read(dump, walk, runner, routing)
    lacking = unobserved(dump, walk.policies)
    result = replace(
        _result(dump, walk, reading, diagnosis, lacking.rows, seed),
        pair_reason=pair_reason,
        routing=routing,
    )
    if decode is not None:
        result = _with_text(result, decode)
    if sequences is not None:
        reader = SequenceReader(
            table=dump,
            behavior=behavior,
            target=target,
            plan=plan,
            decode_ids=decode,
            text=text,
        )
        result = with_sequences(result, reader, asked, seed)
    if dump.as_given.drawn_from is not None:
        result = _with_numbers_of(result, dump.as_given)
    if log is not None and plan is not None:
        # Imported here, because it loads what logs are compared with.
        from rcdiag.usecases.logged.run import beside_log, compared

        logged = compared(log, result, dump, plan)
        diagnosis = beside_log(diagnosis, logged, log, plan)
        result = replace(result, logged=logged, diagnosis=diagnosis)
    return with_findings(
        result,
        dump,
        non_finite=reading.non_finite,
        unobserved=lacking,
        values=result.mismatch,
        plan=plan,
    )


def score_of_one(
    dump: Table, policy: str, *, seed: int = 0, log: Log | None = None, plan: Plan | None = None
) -> ScoreResult:
    """Score a table that has only one policy: count its tokens, diagnose it and the run's `log`."""
    rows, comparison, diagnosis = read_comparison(dump, (policy,), sampler=None)
    about = dump.metadata.get("policies", {})
    lacking = unobserved(dump, (policy,))
    values = without_numbers()
    result = ScoreResult(
        provenance=provenance(dump, seed),
        behavior=policy,
        target="",
        num_sequences=rows.count.sequences,
        num_tokens=rows.count.tokens,
        empty_sequences=dump.num_rows - lacking.rows - rows.count.sequences,
        num_clusters=len(comparison.moments.tokens),
        scoring={policy: about[policy]} if policy in about else {},
        mismatch=values,
        rows_left_out=rows.count.left_out,
        diagnosis=diagnosis,
    )
    if log is not None and plan is not None:
        from rcdiag.usecases.logged.run import not_compared  # loads what logs are compared with

        result = replace(result, logged=not_compared(log, dump, plan))
    return with_findings(
        result, dump, non_finite=rows.non_finite, unobserved=lacking, values=values
    )


def _result(
    dump: Table,
    walk: PairWalk,
    reading: RowsState,
    diagnosis: Diagnosis,
    without_log_probs: int,
    seed: int,
) -> ScoreResult:
    """Return the numbers of one pass; `without_log_probs` rows lack those of a policy."""
    state, plan, (behavior, target) = reading.state, walk.plan, walk.policies[:2]
    assert state is not None
    recorded = dump.metadata.get("policies", {})
    suite = Suite(merge(list(state.by_step().values())), rounding_of(recorded, behavior, target))
    count = merge(list(reading.sizes.values()))
    judge = PairJudge(
        behavior=behavior,
        target=target,
        sampler=walk.sampler,
        rounding=suite.rounding,
        of_weights=rounding_of(recorded, str(walk.sampler), behavior),
        constant=bool(recorded_constants(count, dump) & {behavior, target}),
    )
    reweighting = merge(list(reading.reweighting.values())) if reading.reweighting else None
    means, numbers = judge.values(suite.state, reweighting, count)
    values = under_diagnosis(numbers, diagnosis, (behavior, target))
    whole = None if reading.rows is None else reading.rows.whole  # the table as one batch
    profiles = {**finished(state.profiles), **state.categories.finished()}

    return ScoreResult(
        provenance=provenance(dump, seed),
        behavior=behavior,
        target=target,
        num_sequences=count.sequences,
        num_tokens=count.tokens,
        empty_sequences=dump.num_rows - without_log_probs - count.sequences,
        num_clusters=len(suite.state.tokens),
        scoring={name: one for name, one in recorded.items() if name in (behavior, target)},
        mismatch=values,
        corrections=_corrections(plan, whole, values),
        steps=_by_step(reading, plan, diagnosis, judge),
        token_means=means.tokens,
        sequence_means=means.sequences,
        findings=[],
        figures=_figures(state, suite),
        worst_tokens=state.worst_tokens.tokens,
        profiles=profiles,
        examples=state.examples.finished(profiles),
        worst_token_ids=worst_ids(state.vocabulary),
        worst_sequences=state.worst_sequences.rounded(),
        rows_left_out=count.left_out,
        diagnosis=diagnosis,
    )


class PairJudge(Struct, frozen=True, kw_only=True):
    """How the numbers of a pair are made, on the whole table or on one step."""

    behavior: str
    target: str
    sampler: str | None
    rounding: RoundingNoise  # of the pair
    of_weights: RoundingNoise  # of sampler and behavior
    constant: bool  # a policy's column is one number

    def values(
        self, state: SuiteState | None, reweighting: Reweighting | None, count: RowCount
    ) -> tuple[BehaviorMeans, dict[str, MetricValue]]:
        """Return how means are made, and every metric.

        None has a value where fewer than half of the rows hold numbers, or a column is constant.
        """
        weights = weighted = None
        if state is not None and reweighting is not None:
            weights = judged(Suite(reweighting.weights, self.of_weights))
            weighted = WeightedSuite(state, weighted=reweighting.sums)
        means = behavior_means(self.behavior, self.sampler, weights)
        if state is None or count.too_few or self.constant:
            return means, without_numbers()
        return means, judged_pair(Suite(state, self.rounding), weighted, means)


class RowsState(Struct, frozen=True):
    """The state of some rows."""

    non_finite: NonFinite
    sizes: Mapping[Step, RowCount]
    rows: CorrectionRows | None  # None without a plan of corrections
    state: PairState | None  # None if every row has an invalid log-prob
    reweighting: Mapping[Step, Reweighting]  # empty if the behavior policy sampled

    @property
    def empty(self) -> bool:
        return not self.sizes


class PairWalk(Walk[RowsState], frozen=True, kw_only=True):
    """The pass that measures a pair of policies and collects the sums that corrections need."""

    # `policies` begins with behavior and target; who sampled may be a third one.
    sampler: str | None = None
    plan: Plan | None = None
    asked: Questions = Questions()  # the sums over tokens that the plan needs
    every_row: bool = False  # include rows with a NaN or infinite log-prob in the state

    @classmethod
    def of(cls, dump: Table, behavior: str, target: str, plan: Plan | None) -> PairWalk:
        """Begin the pass over a pair of a table."""
        sampler = sampler_of(dump, behavior)
        read = (behavior, target) if sampler is None else (behavior, target, sampler)
        asked = Questions() if plan is None else asked_by(plan)
        return cls(
            policies=tuple(dict.fromkeys(read)),
            sampler=sampler,
            plan=plan,
            asked=asked,
            masked=bool(asked.of_masked),
            origin=True,
        )

    def of_batch(self, batch: TokenBatch) -> RowsState:
        """Return the state of one batch."""
        pair = PolicyPair(batch, *self.policies[:2])
        steps = pair.by_step()
        rows = None
        if self.plan is not None:
            rows = CorrectionRows.of(steps, self.plan, self.asked)
        clean = pair if self.every_row else pair.take(rows_of_numbers(batch))
        state, reweighting = None, {}
        if len(clean.lengths):
            state = PairState.of(clean)
            if self.sampler is not None and self.sampler != pair.behavior:
                reweighting = {
                    step: Reweighting.of(one, self.sampler, state.suites[step].table)
                    for step, one in clean.by_step().items()
                    if len(one.lengths)
                }
        sizes = {step: RowCount.of(one.tokens) for step, one in steps.items() if len(one.lengths)}
        return RowsState(NonFinite.of(batch), sizes, rows, state, reweighting)


def _read(
    dump: Table, walk: PairWalk, runner: Runner | None, routing: Routing | None
) -> tuple[RowsState, Diagnosis]:
    """Read and diagnose the table in one pass.

    If every row has an invalid log-prob, the table is read again and `state` is that of all rows.
    """
    read, diagnosis = read_and_diagnose(dump, walk, runner, routing)
    if read.state is None:
        already = {"plan": None, "asked": Questions(), "masked": False, "origin": False}
        every = read_table(dump, replace(walk, every_row=True, **already), runner)
        assert every is not None
        read = replace(read, state=every.state, reweighting=every.reweighting)
    return read, diagnosis


def _with_numbers_of(result: ScoreResult, drawn: Table) -> ScoreResult:
    """Replace row numbers by those in the table that the rows were drawn from."""

    def numbered(sequences: Sequence[SequenceTokens]) -> list[SequenceTokens]:
        return [replace(sequence, row=drawn.number(sequence.row)) for sequence in sequences]

    return replace(
        result,
        worst_tokens=[
            {**token, "row": drawn.number(token["row"])} for token in result.worst_tokens
        ],
        worst_sequences=numbered(result.worst_sequences),
        named_sequences=numbered(result.named_sequences),
        drawn_sequences=numbered(result.drawn_sequences),
        examples=None
        if result.examples is None
        else replace(result.examples, row=[drawn.number(row) for row in result.examples.row]),
    )


def _with_text(result: ScoreResult, decode: Decode) -> ScoreResult:
    """Add the text of the single tokens and token ids that the result names."""
    return replace(
        result,
        worst_tokens=[
            {**token, "text": decode([token["token_id"]])[0]} for token in result.worst_tokens
        ],
        worst_token_ids=[
            replace(token, text=decode([token.token_id])[0]) for token in result.worst_token_ids
        ],
        examples=None if result.examples is None else decoded_examples(result.examples, decode),
    )


def _figures(state: PairState, suite: Suite) -> dict[str, Any]:
    table = suite.state.table
    sums = table.sums["log_ratio"]
    return {
        **state.figures.to_dict(),
        "sequence_log_ratio": log_ratio_counts(sums).tolist(),
        "geometric_log_ratio": log_ratio_counts(sums / table.lengths).tolist(),
        "concentration": state.lorenz.shares(SHARES),
    }


def _corrections(
    plan: Plan | None, rows: Sequences | None, values: dict[str, MetricValue]
) -> dict[str, CorrectionResult]:
    """Apply the plan, if there is one, to a batch of rows; `values` is the batch's mismatch."""
    if plan is None or rows is None:
        return {}
    return correction_results(plan, rows, values)


def _by_step(
    reading: RowsState,
    plan: Plan | None,
    diagnosis: Diagnosis,
    judge: PairJudge,
) -> dict[str, StepResult]:
    """Return the numbers of each training step; empty if there is only one step."""
    if len(reading.sizes) < 2 or reading.state is None:
        return {}
    states = reading.state.suites
    results = {}
    for step in sorted(reading.sizes, key=lambda step: -1 if step is None else step):
        size, state = reading.sizes[step], states.get(step)
        _, numbers = judge.values(state, reading.reweighting.get(step), size)
        values = under_diagnosis(numbers, diagnosis, (judge.behavior, judge.target))
        rows = None if reading.rows is None else reading.rows.steps[step]
        results[str(step)] = StepResult(
            num_sequences=size.sequences,
            num_tokens=size.tokens,
            mismatch=values,
            corrections=_corrections(plan, rows, values),
            rows_left_out=size.left_out,
        )
    return results
