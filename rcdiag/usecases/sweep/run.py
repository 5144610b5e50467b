"""Use case `sweep`: every estimator over its thresholds on a recorded pair, and what to take.

One pass over the table; thresholds are declared before it, so shards add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from msgspec import Struct
from msgspec.structs import replace

from rcdiag.diagnosis.checks import CheckInput, findings
from rcdiag.diagnosis.guides import judged, with_premises
from rcdiag.results import SweepResult
from rcdiag.results.sweep import Forecast, SweepFamily
from rcdiag.runners import Runner
from rcdiag.statistics.extremes import NonFinite
from rcdiag.statistics.forecast import forecast
from rcdiag.statistics.merging import merge
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.rounding import rounding_of
from rcdiag.statistics.suite import Suite
from rcdiag.table.columns import frequent_ids, numbered_groups, read_rewards
from rcdiag.table.observed import unobserved
from rcdiag.table.table import Table
from rcdiag.table.token_batch import TokenBatch
from rcdiag.trainers import DEFAULT, find_trainer
from rcdiag.usecases.case_of_table import CaseSample
from rcdiag.usecases.diagnosed import diagnosis_of_table, sample_in_pass
from rcdiag.usecases.passes import Walk, no_tokens, states
from rcdiag.usecases.provenance import provenance
from rcdiag.usecases.score import check_pair
from rcdiag.usecases.sweep.candidates import CANDIDATES, Setting, candidates_with
from rcdiag.usecases.sweep.configuration import (
    choice_configurations,
    family_configurations,
    trainer_default,
)
from rcdiag.usecases.sweep.estimates import kept_groups, length_quartiles, sweep_rows
from rcdiag.usecases.sweep.estimator_families import FAMILIES, Bounds, settings
from rcdiag.usecases.sweep.recommend import Evidence, recommend
from rcdiag.usecases.sweep.sketched_gradients import Baseline, Buckets
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
    runner: Runner | None = None,
) -> SweepResult:
    """Sweep every family over about `thresholds` settings, recommend one, and forecast.

    `own` are names of further candidates, such as `seq_tis_3`, which are ranked with the others.
    `trainer` is whose configuration the reader wants: it is checked here and changes no number.
    `runner` says where the pass over the table is done: in this process without one.
    """
    check_pair(dump, behavior, target)
    name = find_trainer(trainer).name
    candidates = candidates_with(own)
    grids = {
        family: settings(about, thresholds, _bounds_of(family, candidates, own))
        for family, about in FAMILIES.items()
    }
    sample = sample_in_pass(dump, (behavior, target))
    plan = sweep_plan(dump, grids, candidates)
    state, non_finite = _read(dump, behavior, target, plan, runner, sample)
    whole = state.suite
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
    diagnosis = diagnosis_of_table(dump, sample=sample)
    rounding = rounding_of(dump.metadata.get("policies", {}), behavior, target)
    values = with_premises(judged(Suite(whole, rounding)), diagnosis)
    advice = recommend(Evidence(state, values, bad, candidates, diagnosis))
    advice = replace(
        advice,
        trainer_default=trainer_default(name, candidates),
        choice_yaml=choice_configurations(advice.choice),
    )
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
        recommendation=advice,
        forecast=_within_data(
            forecast(whole.table.lengths, whole.table.sums["log_ratio"], whole.table.cluster),
            int(whole.table.lengths.max()),
        ),
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


def _within_data(forecast: Forecast, longest: int) -> Forecast:
    """Leave out the lengths beyond the longest response, where the forecast could not be tested."""
    if forecast.holds is not None:
        return forecast
    points = [point for point in forecast.points if point.response_length <= longest]
    return replace(forecast, points=points)


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
    places = {
        name: (candidate.family, grids[candidate.family].index(candidate.bounds))
        for name, candidate in candidates.items()
        if candidate.bounds in grids.get(candidate.family, ())
    }
    names = dump.schema.names
    recorded = bool({"advantage", "advantages"} & set(names))
    return SweepPlan(
        plans,
        tuple(candidates),
        places,
        grouped="group_id" in names,
        recorded=recorded,
        baseline=None if recorded else Baseline.of(*read_rewards(dump)),
        tokens=dump.response_tokens,
        buckets=Buckets(frequent_ids(dump)),
        groups=numbered_groups(dump),
    )


class RowsState(Struct, frozen=True):
    """What the rows of one part leave."""

    non_finite: NonFinite
    state: SweepState | None  # None where no row has a sampled token


class SweepWalk(Walk[RowsState], frozen=True, kw_only=True):
    """The pass that tries every setting of a plan on a pair of policies."""

    plan: SweepPlan
    tokens_of_part: int = 4_000_000  # a state has many thresholds: few of them are made and added

    def state_of(self, batches: Iterator[TokenBatch]) -> RowsState | None:
        """Return the state of the batches of one part."""
        state: SweepState | None = None
        bad: list[NonFinite] = []
        for batch in batches:
            bad.append(NonFinite.of(batch))
            if len(batch.lengths):
                pair = PolicyPair(batch, *self.policies)
                if state is None:
                    state = SweepState.of(pair, self.plan)
                else:
                    state.take(pair)
        return RowsState(merge(bad), state) if bad else None


def _read(
    dump: Table,
    behavior: str,
    target: str,
    plan: SweepPlan,
    runner: Runner | None,
    sample: CaseSample | None,
) -> tuple[SweepState, NonFinite]:
    """Read the table in one pass."""
    state: SweepState | None = None
    bad: list[NonFinite] = []
    walk = SweepWalk(policies=(behavior, target), plan=plan)
    with closing(states(dump, walk, runner, sample)) as parts:
        for part in parts:
            bad.append(part.non_finite)
            if state is None:
                state = part.state
            elif part.state is not None:
                state.add(part.state)
    if state is None:
        raise no_tokens(dump, (behavior, target))
    return state, merge(bad)
