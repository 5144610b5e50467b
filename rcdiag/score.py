"""Use case `score`: how far two recorded policies of a table are apart.

One pass over the table; the state of two shards is the sum of their states.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from rcdiag.corrections.findings import correction_findings
from rcdiag.corrections.rows import union_of_rows
from rcdiag.corrections.plan import Plan
from rcdiag.corrections.state import CorrectionState, results
from rcdiag.dumps.reader import Dump
from rcdiag.dumps.stream import read_trajectories
from rcdiag.errors import RcdiagError
from rcdiag.findings import score_findings
from rcdiag.provenance import provenance
from rcdiag.results import (
    CorrectionResult,
    MetricValue,
    ScoreResult,
    StepResult,
    by_severity,
)
from rcdiag.statistics.block import Block, block_of
from rcdiag.statistics.extremes import NonFinite
from rcdiag.statistics.histograms import log_ratio_counts
from rcdiag.statistics.mismatch import mismatch
from rcdiag.statistics.profiles import finished, union_of_profiles
from rcdiag.statistics.suite import SuiteState, union_of_states
from rcdiag.statistics.summary import Step, Summary
from rcdiag.statistics.vocabulary import worst_ids

# Token ids -> their text, one string each.
Decode = Callable[[Sequence[int]], list[str]]


def score(
    dump: Dump,
    *,
    behavior: str = "rollout",
    target: str = "old",
    seed: int = 0,
    origin: Dump | None = None,
    decode: Decode | None = None,
    plan: Plan | None = None,
) -> ScoreResult:
    """Mismatch of two recorded policies over all steps and per step, and corrections of it.

    `origin` is the table that the user gave, where `dump` is its scored copy. With `decode` the
    result holds the text of the tokens that it names.
    """
    check_pair(dump, behavior, target)
    corrections = None if plan is None else CorrectionState(plan)
    summary, non_finite = _read(dump, behavior, target, corrections)
    steps = summary.by_step()
    if not steps:
        raise RcdiagError(
            f"{dump.files[0].path}: no unmasked response token in the whole table",
            hint="response_mask is 1 for tokens that the policy sampled; is it inverted?",
        )
    whole = union_of_states(list(steps.values()))
    values = mismatch(whole, seed)
    policies = {
        name: about
        for name, about in dump.metadata.get("policies", {}).items()
        if name in (behavior, target)
    }
    result = ScoreResult(
        provenance=provenance(origin or dump, seed),
        behavior=behavior,
        target=target,
        num_sequences=len(whole.table),
        num_tokens=int(whole.table.lengths.sum()),
        empty_sequences=dump.num_rows - len(whole.table),
        num_clusters=len(whole.tokens),
        policies=policies,
        mismatch=values,
        corrections=_corrected(corrections, values),
        steps=_by_step(steps, seed, corrections),
        findings=[],
        figures=_figures(summary, whole),
        worst_tokens=summary.worst_tokens.to_list(),
        profiles=finished(union_of_profiles(summary.profiles)),
        worst_token_ids=worst_ids(summary.vocabulary),
        worst_sequences=summary.worst_sequences.found,
    )
    findings = [*score_findings(result, non_finite), *correction_findings(result, plan)]
    result = replace(result, findings=by_severity(findings))
    return result if decode is None else _with_text(result, decode)


def _read(
    dump: Dump, behavior: str, target: str, corrections: CorrectionState | None = None
) -> tuple[Summary, NonFinite]:
    """One pass over the table; the next rows are read while the last are worked on."""
    others = [] if corrections is None else [corrections.add]
    summary, non_finite = Summary(), NonFinite()

    def blocks() -> Iterator[Block]:
        for trajectories in read_trajectories(dump, (behavior, target)):
            non_finite.add(trajectories, (behavior, target))
            yield block_of(trajectories, behavior, target)

    with ThreadPoolExecutor(os.cpu_count()) as executor:
        source = blocks()
        following = executor.submit(next, source, None)
        while (block := following.result()) is not None:
            following = executor.submit(next, source, None)
            summary.add(block, executor, *others)
    return summary, non_finite


def _with_text(result: ScoreResult, decode: Decode) -> ScoreResult:
    """The same with the text of every token that is named."""
    return replace(
        result,
        worst_tokens=[
            {**token, "text": decode([token["token_id"]])[0]} for token in result.worst_tokens
        ],
        worst_token_ids=[
            replace(each, text=decode([each.token_id])[0]) for each in result.worst_token_ids
        ],
        worst_sequences=[
            replace(each, texts=decode(each.token_ids)) for each in result.worst_sequences
        ],
    )


def check_pair(dump: Dump, behavior: str, target: str, scored: Sequence[str] = ()) -> None:
    """Both policies are recorded, or among those that are about to be `scored`."""
    if behavior == target:
        raise RcdiagError(
            f"behavior and target are both `{behavior}`", hint="a mismatch needs two policies"
        )
    there = [*dump.policies, *(name for name in scored if name not in dump.policies)]
    missing = [name for name in (behavior, target) if name not in there]
    if missing and len(there) >= 2:
        raise RcdiagError(
            f"{dump.files[0].path}: no `{missing[0]}_log_probs`; there are policies "
            f"{', '.join(there)}",
            hint=f"choose two: --behavior {there[-2]} --target {there[-1]}; or score it: "
            f"--policy {missing[0]}=hf:float32,model=PATH",
        )
    for name in missing:
        dump.require(f"{name}_log_probs")


def _corrected(
    corrections: CorrectionState | None, values: dict[str, MetricValue]
) -> dict[str, CorrectionResult]:
    """The whole table as one batch."""
    if corrections is None:
        return {}
    rows = union_of_rows(list(corrections.by_step().values()))
    return results(corrections.plan, rows, _k_hats(values))


def _figures(summary: Summary, whole: SuiteState) -> dict[str, Any]:
    sums = whole.table.sums["log_ratio"]
    return {
        **summary.figures.to_dict(),
        "sequence_log_ratio": log_ratio_counts(sums).tolist(),
        "geometric_log_ratio": log_ratio_counts(sums / whole.table.lengths).tolist(),
    }


def _k_hats(values: dict[str, MetricValue]) -> dict[str, float | None]:
    return {"token": values["khat_token"].value, "sequence": values["khat_seq"].value}


def _by_step(
    steps: dict[Step, SuiteState], seed: int, corrections: CorrectionState | None
) -> dict[str, StepResult]:
    """The same per training step, when there are several: the batches of a trainer."""
    if len(steps) < 2:
        return {}
    rows = {} if corrections is None else corrections.by_step()
    found = {}
    for step, state in steps.items():
        values = mismatch(state, seed)
        corrected = {}
        if corrections is not None:
            corrected = results(corrections.plan, rows[step], _k_hats(values))
        found[str(step)] = StepResult(
            num_sequences=len(state.table),
            num_tokens=int(state.table.lengths.sum()),
            mismatch=values,
            corrections=corrected,
        )
    return found
