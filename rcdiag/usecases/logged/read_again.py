"""Read the steps with differing numbers again, under other plans and without rejected tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.corrections.apply import token_effects
from rcdiag.corrections.arithmetic import Tokens
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.sequences import Sequences, rows_of
from rcdiag.corrections.trainer_means import Batch
from rcdiag.statistics.accumulator import Step
from rcdiag.statistics.merging import merge, merge_by_key, merged
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.suite import Suite, SuiteState
from rcdiag.table.table import Table
from rcdiag.table.token_batch import TokenBatch
from rcdiag.table.trajectories import segment_sum
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.corrected import CorrectionRows, asked_by
from rcdiag.usecases.passes import Walk, token_batches

Numbers = Mapping[str, float]


class SecondReading(Struct, frozen=True):
    """The sequences of some training steps after one more pass over the table."""

    plans: Mapping[str, Plan]
    rows: Mapping[str, CorrectionRows]  # by the name of the plan
    kept: CorrectionRows | None  # without the tokens that the first plan rejects
    states: Mapping[Step, SuiteState]  # with probabilities rounded to float32
    numbers: Mapping[Step, NDArray[np.int64]]  # of the rows with a token, in the whole table
    table_rows: int

    def of(self, step: Step, plan: str) -> dict[str, Numbers]:
        """Return the numbers of every preset of a plan, as its trainer logs them.

        A preset that needs the whole batch is left out, since the table was read in parts.
        """
        rows = self.rows[plan].steps[step]
        return {
            name: logged_by(self.plans[plan], name, rows)
            for name, correction in self.plans[plan].corrections.items()
            if not correction.needs_whole_batch
        }

    def rounded(self, step: Step, metric: str) -> float | None:
        """Return a metric of the mismatch, computed with probabilities in float32."""
        return METRICS[metric].value(Suite(self.states[step])).value

    def places(self, step: Step, rows: Sequences) -> NDArray[np.int64]:
        """Return the positions of a step's rows among all its rows, including those without tokens.

        If rows of other steps are in between, rows without tokens are taken for the last ones.
        """
        numbers, count = self.numbers[step], len(rows) + rows.empty
        first = 0 if count == self.table_rows else int(numbers[0])
        if first + count > int(numbers[-1]):
            return numbers - first
        return np.arange(len(numbers))


def logged_by(plan: Plan, preset: str, rows: Sequences) -> Numbers:
    """Return what the trainer logs for some rows with one preset."""
    correction = plan.corrections[preset]
    with np.errstate(all="ignore"):
        return plan.trainer.metrics(Batch(rows.under(correction.guard)), correction)


def read_again(
    dump: Table,
    behavior: str,
    target: str,
    steps: Collection[Step],
    plans: Mapping[str, Plan],
    preset: str | None,
    metrics: Collection[str],
) -> SecondReading:
    """Read the rows of some steps for all plans together.

    `preset` is the preset of the first plan whose rejection is applied; `metrics` are metrics of
    the mismatch that are to be computed with probabilities in float32.
    """
    rows: dict[str, list[CorrectionRows]] = {name: [] for name in plans}
    kept: list[CorrectionRows] = []
    states: list[dict[Step, SuiteState]] = []
    numbers: dict[Step, list[NDArray[np.int64]]] = {}
    asked = {name: asked_by(plan) for name, plan in plans.items()}
    first = next(iter(plans), "")
    applied = None if preset is None else plans[first].corrections.get(preset)
    rejects = applied is not None and not applied.needs_whole_batch and applied.rejects
    for batch in token_batches(dump, Walk(policies=(behavior, target))):
        pairs = PolicyPair(batch, behavior, target).by_step()
        wanted = {step: pair for step, pair in pairs.items() if step in steps}
        if not wanted:
            continue
        for step, pair in wanted.items():
            numbers.setdefault(step, []).append(pair.tokens.row)
        for name, plan in plans.items():
            rows[name].append(CorrectionRows.of(wanted, plan, asked[name]))
        if applied is not None and rejects:
            left = {
                step: after_rejection(pair, plans[first], applied) for step, pair in wanted.items()
            }
            kept.append(CorrectionRows.of(left, plans[first], asked[first]))
        if metrics:
            states.append(
                {
                    step: SuiteState.of(_in_float32(pair))
                    for step, pair in wanted.items()
                    if len(pair.lengths)
                }
            )
    return SecondReading(
        plans,
        {name: merge(parts) for name, parts in rows.items() if parts},
        merged(kept),
        merge_by_key(states),
        {step: np.concatenate(parts) for step, parts in numbers.items()},
        dump.num_rows,
    )


def _in_float32(pair: PolicyPair) -> PolicyPair:
    """Return the pair with log-probs replaced by log(exp(log_prob) in float32)."""
    with np.errstate(divide="ignore"):
        rounded = {
            name: np.log(np.exp(values.astype(np.float32)).astype(np.float64))
            for name, values in pair.tokens.log_probs.items()
        }
    return PolicyPair(replace(pair.tokens, log_probs=rounded), pair.behavior, pair.target)


def after_rejection(pair: PolicyPair, plan: Plan, correction: Correction) -> PolicyPair:
    """Return the tokens that stay in the loss mask; rows without any of them count as empty."""
    with np.errstate(all="ignore"):
        rows = rows_of(pair, dtype=plan.dtype)
        kept = token_effects(correction, Tokens.of(pair, plan.dtype), rows).kept
    return PolicyPair(_of_tokens(pair.tokens, kept), pair.behavior, pair.target)


def _of_tokens(batch: TokenBatch, kept: NDArray[np.bool_]) -> TokenBatch:
    """Return a batch of one step without the tokens that are not kept."""
    lengths = segment_sum(kept.astype(np.int64), batch.lengths)
    filled = lengths > 0
    step = None if batch.step is None or not len(batch.step) else int(batch.step[0])
    count = sum(batch.empty.values()) + int((~filled).sum())

    def of_tokens(values: NDArray[Any] | None) -> NDArray[Any] | None:
        return None if values is None else values[kept]

    shorter = replace(
        batch,
        log_probs={name: values[kept] for name, values in batch.log_probs.items()},
        entropy={name: values[kept] for name, values in batch.entropy.items()},
        token_id=batch.token_id[kept],
        position=batch.position[kept],
        turn=of_tokens(batch.turn),
        advantages=of_tokens(batch.advantages),
        lengths=lengths,
    )
    return shorter.take(filled, {step: count})
