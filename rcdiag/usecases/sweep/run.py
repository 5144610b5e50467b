"""Use case `sweep`: every estimator over its thresholds on a recorded pair, and what to take.

One pass over the table; thresholds are declared before it, so shards add up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from rcdiag.diagnosis.checks import CheckInput, findings
from rcdiag.diagnosis.guides import judged
from rcdiag.results import SweepResult
from rcdiag.results.sweep import SweepFamily
from rcdiag.statistics.adding import RunningSum
from rcdiag.statistics.extremes import NonFinite
from rcdiag.statistics.forecast import forecast
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.suite import Suite
from rcdiag.table.columns import read_rewards
from rcdiag.table.observed import unobserved
from rcdiag.table.table import Table
from rcdiag.trainers import DEFAULT, find_trainer
from rcdiag.usecases.case import CaseRows
from rcdiag.usecases.diagnosed import diagnosis_of_table, rows_to_judge
from rcdiag.usecases.passes import no_tokens, token_batches
from rcdiag.usecases.provenance import provenance
from rcdiag.usecases.score import check_pair
from rcdiag.usecases.sweep.candidates import CANDIDATES, Setting, candidates_with
from rcdiag.usecases.sweep.configuration import choice_configurations, family_configurations
from rcdiag.usecases.sweep.estimates import kept_groups, length_quartiles, sweep_rows
from rcdiag.usecases.sweep.families import FAMILIES, Bounds, settings
from rcdiag.usecases.sweep.gradients import Baseline
from rcdiag.usecases.sweep.recommend import Evidence, recommend
from rcdiag.usecases.sweep.state import SweepPlan, SweepState

Grids = dict[str, list[Bounds]]


def sweep(
    dump: Table,
    *,
    behavior: str = "rollout",
    target: str = "old",
    seed: int = 0,
    thresholds: int = 60,
    trainer: str = DEFAULT,
    own: Sequence[str] = (),
) -> SweepResult:
    """Sweep every family over about `thresholds` settings, recommend one, and forecast.

    `own` are names of further candidates, such as `seq_tis_3`, which are ranked with the others.
    `trainer` is whose configuration the reader wants: it is checked here and changes no number.
    """
    check_pair(dump, behavior, target)
    name = find_trainer(trainer).name
    candidates = candidates_with(own)
    grids = {
        family: settings(about, thresholds, _bounds_of(family, candidates, own))
        for family, about in FAMILIES.items()
    }
    rows = rows_to_judge(dump, (behavior, target))
    plan = sweep_plan(dump, grids, candidates)
    state, non_finite = _read(dump, behavior, target, plan, rows)
    whole = state.suite
    values = judged(Suite(whole))
    groups = kept_groups(state)
    families = {
        family: SweepFamily(
            title=about.title,
            about=about.about,
            scope=about.level,
            axis=about.axis,
            rows=sweep_rows(state, family, grids[family], groups),
            configurations=family_configurations(family, grids[family]),
        )
        for family, about in FAMILIES.items()
    }
    bad = sum(non_finite.tokens.values())
    diagnosis = diagnosis_of_table(dump, rows=rows)
    advice = recommend(Evidence(state, values, bad, candidates, diagnosis))
    result = SweepResult(
        provenance={**provenance(dump, seed), "trainer": name, "thresholds": thresholds},
        behavior=behavior,
        target=target,
        num_sequences=len(whole.table),
        num_tokens=int(whole.table.lengths.sum()),
        num_groups_with_two=int(groups[""][0]),
        num_clusters=len(whole.tokens),
        length_quartiles=length_quartiles(state),
        families=families,
        recommendation=replace(advice, choice_yaml=choice_configurations(advice.choice)),
        forecast=forecast(whole.table.lengths, whole.table.sums["log_ratio"], whole.table.cluster),
        diagnosis=diagnosis,
    )
    given = CheckInput(
        result=result,
        non_finite=non_finite,
        unobserved=unobserved(dump, (behavior, target)),
        values=values,
        unread=dump.unread,
        naming=dump.naming,
    )
    return replace(result, findings=findings(given))


def _bounds_of(family: str, candidates: Mapping[str, Setting], own: Sequence[str]) -> list[Bounds]:
    """Return the bounds of the user's own candidates of a family."""
    return [
        candidates[name].bounds
        for name in own
        if name in candidates and candidates[name].family == family
    ]


def sweep_plan(
    dump: Table, grids: Grids, candidates: Mapping[str, Setting] = CANDIDATES
) -> SweepPlan:
    """Plan what is tried on a table: thresholds, candidates and the baseline of its rewards."""
    plans = {
        family: [FAMILIES[family].correction(bounds) for bounds in grid]
        for family, grid in grids.items()
    }
    plans |= {name: [candidate.correction] for name, candidate in candidates.items()}
    names = dump.schema.names
    recorded = bool({"advantage", "advantages"} & set(names))
    return SweepPlan(
        plans,
        tuple(candidates),
        grouped="group_id" in names,
        recorded=recorded,
        baseline=None if recorded else Baseline.of(*read_rewards(dump)),
    )


def _read(
    dump: Table, behavior: str, target: str, plan: SweepPlan, case: CaseRows | None
) -> tuple[SweepState, NonFinite]:
    """Read the table in one pass; the rows go into `case` too, where there is one."""
    state: SweepState | None = None
    bad: RunningSum[NonFinite] = RunningSum()
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        for batch in token_batches(dump, (behavior, target), executor, case=case):
            bad.add(NonFinite.of(batch))
            if len(batch.lengths):
                pair = PolicyPair(batch, behavior, target)
                if state is None:
                    state = SweepState.of(pair, plan)
                else:
                    state.take(pair)
    non_finite = bad.total()
    if state is None or non_finite is None:
        raise no_tokens(dump, (behavior, target))
    return state, non_finite
