"""Use case `sweep`: every estimator over its thresholds on a recorded pair, and a recommendation.

It is one pass over the table; thresholds are fixed before it, so that the sums of parts add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from rcdiag.diagnosis.guides import judged, under_diagnosis
from rcdiag.results import SweepResult
from rcdiag.results.forecast import Forecast
from rcdiag.results.sweep import SweepFamily, SweepRow
from rcdiag.runners import Runner
from rcdiag.statistics.forecast import forecast
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.quantiles import in_short
from rcdiag.statistics.rounding import rounding_of
from rcdiag.statistics.suite import Suite
from rcdiag.statistics.totals import SequenceTable
from rcdiag.table.survey import unobserved
from rcdiag.table.table import Table
from rcdiag.table.token_batch import TokenBatch
from rcdiag.trainers import DEFAULT, find_trainer
from rcdiag.usecases.diagnosed import read_and_diagnose, with_findings
from rcdiag.usecases.passes import Walk
from rcdiag.usecases.provenance import provenance
from rcdiag.usecases.sweep.candidates import candidates_with
from rcdiag.usecases.sweep.configuration import (
    choice_configurations,
    family_configurations,
    trainer_default,
)
from rcdiag.usecases.sweep.estimates import length_quartiles, sweep_rows
from rcdiag.usecases.sweep.estimator_families import FAMILIES
from rcdiag.usecases.sweep.guide import guide_sentence
from rcdiag.usecases.sweep.plan import SweepPlan, plan_of_table
from rcdiag.usecases.sweep.recommend import SweepEvidence, recommend
from rcdiag.usecases.sweep.sums import SweepState

# A part has at least this many tokens for each setting, because every part's state must be made,
# sent and added: it takes 13 kB per setting, 280 MB for 21,500 settings, two of them at a time.
TOKENS_OF_SETTING = 1_000


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
    """Sweep every family over about `thresholds` settings, recommend a candidate, and forecast.

    `own` are names of further candidates, such as `seq_tis_3`, which are ranked with the others.
    `trainer` is the trainer whose default is named next to the choice; it changes no other field.
    `runner` says where the pass over the table runs; by default in this process.
    """
    name = find_trainer(trainer).name
    plan = plan_of_table(dump, thresholds, candidates_with(own))
    pair = (behavior, target)
    state, diagnosis = read_and_diagnose(dump, SweepWalk(policies=pair, plan=plan), runner)
    whole = state.suite
    assert whole is not None
    rows = {family: sweep_rows(state, family) for family in plan.grids}
    rounding = rounding_of(dump.metadata.get("policies", {}), behavior, target)
    values = under_diagnosis(judged(Suite(whole, rounding)), diagnosis, pair)
    bad_tokens = sum(state.non_finite.tokens.values())
    advice = recommend(SweepEvidence(state, rows, values, bad_tokens, diagnosis))
    quartiles = length_quartiles(state)
    advice = replace(
        advice,
        guide=guide_sentence(advice, values["k3_kl"], quartiles[1]),
        trainer_default=trainer_default(name, plan.candidates),
        choice_yaml=choice_configurations(advice.choice),
    )
    result = SweepResult(
        provenance={**provenance(dump, seed), "trainer": name, "thresholds": thresholds},
        behavior=behavior,
        target=target,
        num_sequences=len(whole.table),
        num_tokens=int(whole.table.lengths.sum()),
        num_groups_with_two=int(state.groups_with_two("")[0]),
        num_clusters=len(whole.tokens),
        length_quartiles=quartiles,
        families=_families(plan, rows),
        recommendation=advice,
        forecast=_forecast(whole.table),
        diagnosis=diagnosis,
    )
    lacking = unobserved(dump, pair)
    return with_findings(
        result, dump, non_finite=state.non_finite, unobserved=lacking, values=values
    )


def _families(plan: SweepPlan, rows: Mapping[str, list[SweepRow]]) -> dict[str, SweepFamily]:
    """Return the families with their rows, and their settings as YAML for each trainer."""
    return {
        family: SweepFamily(
            title=about.title,
            about=about.about,
            scope=about.level,
            axis=about.axis,
            rows=rows[family],
            configurations=family_configurations(family, plan.grids[family]),
        )
        for family, about in FAMILIES.items()
    }


class SweepWalk(Walk[SweepState], frozen=True, kw_only=True):
    """The pass that tries every setting of a plan on a pair of policies."""

    plan: SweepPlan

    @property
    def tokens_of_part(self) -> int:
        settings = sum(map(len, self.plan.grids.values()))
        return max(super().tokens_of_part, TOKENS_OF_SETTING * settings)

    def state_of(self, batches: Iterator[TokenBatch]) -> SweepState:
        """Return the state of the batches of one part."""
        state = SweepState(self.plan)
        for batch in batches:
            state.take(PolicyPair(batch, *self.policies))
        return state

    def in_short(self, state: SweepState) -> SweepState:
        """Return the state of a part with values replaced by counts."""
        state.suite = in_short(state.suite)
        return state

    def merged(self, parts: Iterator[SweepState]) -> SweepState | None:
        """Add up the states of parts in place, since a copy is large with many thresholds."""
        whole = next(parts, None)
        for part in parts:
            assert whole is not None
            whole.add(part)
        return whole


def _forecast(table: SequenceTable) -> Forecast:
    """Forecast by length; if the forecast could not be tested, only up to the longest response."""
    about = forecast(table.lengths, table.sums["log_ratio"], table.cluster)
    if about.holds is not None:
        return about
    longest = int(table.lengths.max())
    return replace(about, points=[it for it in about.points if it.response_length <= longest])
