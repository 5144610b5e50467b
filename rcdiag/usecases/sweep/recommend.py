"""What to take: a procedure of rcdiag's own, in five steps that comments name.

0 is there anything to correct, and are the ratios those of the distribution that sampled: if not,
nothing is scored; 1 are the ratios of sequences a reference: if not, no bias is known and
candidates cannot be distinguished; 2 the squared error of every candidate's batch gradient;
3 constraints; 4 the simplest candidate whose error is the least, within one standard error and what
is not worth a correction. Where the bias without correction is not known to within the noise of a
batch, a candidate is taken only if it is better than none at 95%.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from rcdiag.diagnosis.constraints import (
    EFFECTIVE_SEQUENCES,
    HEAVY_TAIL,
    Judged,
    holds,
    refused,
)
from rcdiag.results import Diagnosis, MetricValue
from rcdiag.results.sweep import Candidate, Recommendation
from rcdiag.usecases.sweep import sentences as reasons
from rcdiag.usecases.sweep.candidates import CANDIDATES, Setting
from rcdiag.usecases.sweep.estimates import kept_groups, sweep_rows
from rcdiag.usecases.sweep.scores import Scores, gradient_scores, weight_distance
from rcdiag.usecases.sweep.state import SweepState

Values = Mapping[str, MetricValue]

# The weights of sequences differ from 1 by less than this on average: nothing to correct.
NEGLIGIBLE = 0.01


class Evidence(Struct, frozen=True):
    """What the recommendation is made from."""

    state: SweepState
    values: Values  # of the mismatch suite
    bad_tokens: int  # unmasked tokens with a log-prob that is no number
    candidates: Mapping[str, Setting] = field(default_factory=lambda: CANDIDATES)
    diagnosis: Diagnosis | None = None  # of the table; None: nobody judged it

    @property
    def sequences(self) -> int:
        return int(self.state.cluster("", "sequences").sum())

    @property
    def clusters(self) -> int:
        return self.state.num_clusters


def recommend(evidence: Evidence) -> Recommendation:
    """Recommend by the gate, the errors, the constraints and the one-standard-error rule."""
    sentences = [*reasons.table(evidence.sequences, evidence.clusters)]
    verdict = None if evidence.diagnosis is None else evidence.diagnosis.verdict
    if evidence.diagnosis is not None and verdict == "broken":  # step 0: the judge of the table
        sentences.append(reasons.must_be_repaired(evidence.diagnosis))
        return _without_scores("fix-the-cause", sentences)
    if evidence.bad_tokens:  # step 0: hygiene
        sentences.append(reasons.not_numbers(evidence.bad_tokens))
        return _without_scores("fix-the-cause", sentences)
    if evidence.clusters < 2:
        return _without_scores("cannot-distinguish", [*sentences, reasons.ONE_CLUSTER])
    broken = {name: refused(candidate) for name, candidate in _judged(evidence).items()}
    away = weight_distance(evidence.state, "none")
    causes = reasons.gate(evidence.values) if verdict in (None, "inconclusive") else []
    if causes and away >= NEGLIGIBLE:  # step 0: the behavior policy is not the one that sampled
        return _unranked(evidence, broken, "fix-the-cause", [*sentences, *causes])
    doubt = _doubt(evidence)  # step 1
    scores = gradient_scores(evidence.state, evidence.candidates, referred=doubt is None)  # step 2
    if scores is None:
        return _unranked(evidence, broken, "cannot-distinguish", [*sentences, reasons.NO_ADVANTAGE])
    ranking = _Ranking(evidence, scores, broken, reasons.method(evidence.state, doubt is None))
    sentences += [reason for reason in (reasons.signal(evidence.state), doubt) if reason]
    if verdict == "healthy" or away < NEGLIGIBLE:
        sentences.append(
            reasons.costs_nothing(away)
            if verdict == "healthy"
            else reasons.negligible(away, NEGLIGIBLE)
        )
        return ranking.chosen("no-correction", "none", sentences)
    sentences += [*reasons.presupposed(evidence.values), *reasons.causes(evidence.values)]
    if not ranking.allowed:  # step 3
        return ranking.undecided([*sentences, reasons.nothing_allowed(broken)], [])
    if doubt is not None:
        sentences.append(reasons.costs(ranking.allowed, scores))
        return ranking.undecided(sentences, ranking.allowed)
    choice = ranking.simplest()  # step 4
    if not scores.resolved and (choice == "none" or not scores.surely_better(choice, "none")):
        sentences.append(reasons.unresolved(ranking.near, scores))
        return ranking.undecided(sentences, ranking.near)
    # Ratios that do not average 1 are not those of the sampler: none can be recommended.
    if choice != "none" and (above := reasons.mean_above_one(evidence.values)):
        return _unranked(evidence, broken, "cannot-distinguish", [*sentences, above])
    sentences.append(reasons.choice(ranking.best, choice, ranking.near, scores))
    answer = "no-correction" if choice == "none" else "take"
    return ranking.chosen(answer, choice, sentences)


def _judged(evidence: Evidence) -> dict[str, Judged]:
    state, groups = evidence.state, kept_groups(evidence.state)
    return {
        name: Judged(
            sweep_rows(state, name, [candidate.bounds], groups)[0],
            evidence.sequences,
            state.tails[name],
            int(state.cluster("", "above_clamp").sum()),
        )
        for name, candidate in evidence.candidates.items()
    }


def _doubt(evidence: Evidence) -> str | None:
    """Say why the ratios of sequences are no reference: too few carry them, or their tail."""
    ess, tail = evidence.values["ess_seq"].value, evidence.values["khat_seq"]
    left = 0.0 if ess is None or not np.isfinite(ess) else ess * evidence.sequences
    if not holds(EFFECTIVE_SEQUENCES, left):
        return reasons.few_effective(left, EFFECTIVE_SEQUENCES.warning)
    # Without a level the tail is of ratios near 1, and moves nothing however heavy.
    if tail.level is not None and tail.value is not None and not holds(HEAVY_TAIL, tail.value):
        return reasons.heavy_tail(tail.value, HEAVY_TAIL.warning)
    return None


class _Ranking(Struct, frozen=True):
    """The candidates by their scores, those that break a constraint last."""

    evidence: Evidence
    scores: Scores
    broken: Mapping[str, list[str]]
    method: str

    @property
    def allowed(self) -> list[str]:
        return [name for name, constraints in self.broken.items() if not constraints]

    @property
    def best(self) -> str:
        """The one with the least error of those that break no constraint."""
        return max(self.allowed, key=self.scores.place)

    @property
    def near(self) -> list[str]:
        """Those that break no constraint, within one standard error of the best."""
        best = self.best if self.allowed else ""
        return [name for name in self.allowed if self.scores.within(best, name)]

    def simplest(self) -> str:
        """The simplest within one standard error of the best; of equally simple ones the better."""
        candidates = self.evidence.candidates
        return min(
            self.near, key=lambda name: (candidates[name].complexity, -self.scores.place(name))
        )

    def undecided(self, sentences: list[str], near: list[str]) -> Recommendation:
        """Return the candidates without ranks: those of `near` cannot be distinguished."""
        return self._with("cannot-distinguish", None, sentences, near, ranked=False)

    def chosen(self, answer: str, choice: str, sentences: list[str]) -> Recommendation:
        """Return the ranking with what was chosen."""
        return self._with(answer, choice, sentences, self.near, ranked=True)

    def _with(
        self,
        answer: str,
        choice: str | None,
        sentences: list[str],
        near: list[str],
        *,
        ranked: bool,
    ) -> Recommendation:
        candidates, allowed = self.evidence.candidates, self.allowed if ranked else []
        order = sorted(
            candidates, key=lambda name: (bool(self.broken[name]), -self.scores.place(name))
        )
        return Recommendation(
            answer=answer,
            choice=choice,
            indistinguishable=[name for name in order if name in near],
            reasons=sentences,
            method=self.method,
            candidates=[
                Candidate(
                    name=name,
                    family=candidates[name].family,
                    bounds=candidates[name].bounds,
                    efficiency=self.scores.metric(name),
                    gradient_bias=self.scores.bias(name),
                    gradient_bias_high=self.scores.most_bias(name),
                    gradient_noise=self.scores.noise(name),
                    refused=self.broken[name],
                    rank=rank if name in allowed else None,
                    within_error_of_best=name in near,
                )
                for rank, name in enumerate(order, 1)
            ],
        )


def _unranked(
    evidence: Evidence, broken: Mapping[str, list[str]], answer: str, sentences: list[str]
) -> Recommendation:
    """Return candidates without scores and ranks: by these ratios none can be told from another."""
    return replace(
        _without_scores(answer, sentences),
        candidates=[
            Candidate(
                name=name,
                family=setting.family,
                bounds=setting.bounds,
                efficiency=MetricValue(value=None),
                refused=broken[name],
                rank=None,
                within_error_of_best=False,
            )
            for name, setting in evidence.candidates.items()
        ],
    )


def _without_scores(answer: str, sentences: list[str]) -> Recommendation:
    return Recommendation(
        answer=answer,
        choice=None,
        indistinguishable=[],
        reasons=sentences,
        method="no candidate was scored",
        candidates=[],
    )
