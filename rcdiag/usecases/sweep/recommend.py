"""What to take: a procedure of rcdiag's own, in seven steps that comments name.

0 is there anything to correct, and are the ratios those of the law that sampled: if not, nothing is
scored; 1 a cause that explains most; 2 scores by gradients; 3 constraints; 4 scores by a bound on
the bias where gradients cannot be believed and the bound can; 5 the best bound of sequence TIS; 6
the simplest within one standard error of the best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from rcdiag.diagnosis.constraints import (
    EFFECTIVE_SEQUENCES,
    HEAVY_TAIL,
    Judged,
    holds,
    refused,
)
from rcdiag.results import Diagnosis, MetricValue
from rcdiag.results.sweep import Candidate, Recommendation, SweepFamily
from rcdiag.usecases.sweep import reasons
from rcdiag.usecases.sweep.candidates import CANDIDATES, Setting
from rcdiag.usecases.sweep.estimates import kept_groups, sweep_rows
from rcdiag.usecases.sweep.gradients import REFERENCE
from rcdiag.usecases.sweep.scores import Scores, bias_bound, by_bound, by_gradient
from rcdiag.usecases.sweep.state import SweepState

Values = Mapping[str, MetricValue]

# The weights of sequences differ from 1 by less than this on average: nothing to correct.
NEGLIGIBLE = 0.01


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the recommendation is made from."""

    state: SweepState
    values: Values  # of the mismatch suite
    families: Mapping[str, SweepFamily]
    bad_tokens: int  # unmasked tokens with a log-prob that is no number
    seed: int
    candidates: Mapping[str, Setting] = field(default_factory=lambda: CANDIDATES)
    diagnosis: Diagnosis | None = None  # of the table; None: nobody judged it

    @property
    def sequences(self) -> int:
        return int(self.state.cluster("", "sequences").sum())

    @property
    def clusters(self) -> int:
        return self.state.num_clusters


def recommend(evidence: Evidence) -> Recommendation:
    """Recommend by the gate, the constraints, the scores and the one-standard-error rule."""
    sentences = [*reasons.table(evidence.sequences, evidence.clusters)]
    verdict = None if evidence.diagnosis is None else evidence.diagnosis.verdict
    if evidence.diagnosis is not None and verdict == "fix":  # step 0: the judge of the table
        sentences.append(reasons.must_be_mended(evidence.diagnosis))
        return _without_scores("fix-the-cause", sentences)
    if evidence.bad_tokens:  # step 0: hygiene
        sentences.append(reasons.not_numbers(evidence.bad_tokens))
        return _without_scores("fix-the-cause", sentences)
    if evidence.clusters < 2:
        return _without_scores("cannot-judge", [*sentences, reasons.ONE_CLUSTER])
    judged = _judged(evidence)
    broken = {name: refused(candidate) for name, candidate in judged.items()}
    away = _distance(evidence)
    if verdict == "fine":
        scores, method, why = _scored(evidence)
        sentences += [*why, reasons.costs_nothing(away)]
        return _chosen(evidence, scores, broken, "do-not-correct", "none", sentences, method)
    causes = reasons.gate(evidence.values) if verdict in (None, "cannot-tell") else []
    if causes and away >= NEGLIGIBLE:  # step 0: the behavior policy is not the one that sampled
        sentences += causes
        return _unranked(evidence, broken, "fix-the-cause", sentences)
    scores, method, why = _scored(evidence)
    sentences += why
    if away < NEGLIGIBLE:
        sentences.append(reasons.negligible(away, NEGLIGIBLE))
        return _chosen(evidence, scores, broken, "do-not-correct", "none", sentences, method)
    # The score by a bound takes E[ratio] for 1.
    if method == reasons.BY_BOUND and (above := reasons.mean_above_one(evidence.values)):
        return _unranked(evidence, broken, "cannot-judge", [*sentences, above])
    sentences += reasons.causes(evidence.values)  # step 1
    allowed = [name for name, constraints in broken.items() if not constraints]
    if not allowed:  # step 3
        sentences.append(reasons.nothing_allowed(broken))
        return _chosen(evidence, scores, broken, "cannot-judge", None, sentences, method)
    sentences += reasons.best_bound(evidence.families, evidence.sequences)  # step 5
    best, near = _near(scores, allowed)  # step 6
    choice = min(near, key=lambda name: (evidence.candidates[name].complexity, -scores.value(name)))
    sentences.append(reasons.choice(best, choice, near, scores))
    answer = "do-not-correct" if choice == "none" else "correct"
    return _chosen(evidence, scores, broken, answer, choice, sentences, method)


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


def _distance(evidence: Evidence) -> float:
    """E|ratio - 1| over sequences."""
    once = np.ones((1, evidence.clusters))
    return float(bias_bound(evidence.state, "none", once)[0])


def _scored(evidence: Evidence) -> tuple[Scores, str, list[str]]:
    """Score by gradients (step 2), or by the bound where the reference cannot be believed (4)."""
    names = list(evidence.candidates)
    if guard := _guard(evidence):
        return _by_bound(evidence, guard)
    scores = by_gradient(evidence.state, names, evidence.seed)
    if scores is not None:
        return scores, reasons.by_gradient(evidence.state), []
    signals = bool(evidence.state.cluster(REFERENCE, "signals").any())
    why = reasons.SIGNAL_LOST if signals else reasons.NO_SIGNAL
    return _by_bound(evidence, why)


def _by_bound(evidence: Evidence, why: str) -> tuple[Scores, str, list[str]]:
    """Score by the bound, which `why` calls for, and say what the bound presupposes."""
    scores = by_bound(evidence.state, list(evidence.candidates), evidence.seed)
    return scores, reasons.BY_BOUND, [why, *reasons.presupposed(evidence.values)]


def _guard(evidence: Evidence) -> str | None:
    """Say that too few sequences, or a tail too heavy, carry the reference; None if not."""
    ess, tail = evidence.values["ess_seq"].value, evidence.values["khat_seq"]
    left = 0.0 if ess is None or not np.isfinite(ess) else ess * evidence.sequences
    if not holds(EFFECTIVE_SEQUENCES, left):
        return reasons.few_effective(left, EFFECTIVE_SEQUENCES.warning)
    # Without a level the tail is of ratios near 1, and moves nothing however heavy.
    if tail.level is not None and tail.value is not None and not holds(HEAVY_TAIL, tail.value):
        return reasons.heavy_tail(tail.value, HEAVY_TAIL.warning)
    return None


def _near(scores: Scores, allowed: list[str]) -> tuple[str, list[str]]:
    """The best of those allowed, and all within one standard error of it."""
    best = max(allowed, key=scores.value)
    return best, [name for name in allowed if scores.within(best, name)]


def _chosen(
    evidence: Evidence,
    scores: Scores,
    broken: Mapping[str, list[str]],
    answer: str,
    choice: str | None,
    sentences: list[str],
    method: str,
) -> Recommendation:
    """The ranking with what was chosen; the best scores first, those refused last."""
    candidates = evidence.candidates
    allowed = [name for name, constraints in broken.items() if not constraints]
    near = _near(scores, allowed)[1] if allowed else []
    order = sorted(candidates, key=lambda name: (bool(broken[name]), -scores.value(name)))
    return Recommendation(
        answer=answer,
        choice=choice,
        indistinguishable=[name for name in order if name in near],
        reasons=sentences,
        method=method,
        candidates=[
            Candidate(
                name=name,
                family=candidates[name].family,
                bounds=candidates[name].bounds,
                efficiency=scores.metric(name),
                refused=broken[name],
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
