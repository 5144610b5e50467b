"""Recommend an estimator in five steps, which comments name; the procedure is rcdiag's proposal.

0. Is there anything to correct, and did the recorded distribution sample? If not, no candidate is
   scored.
1. Are the ratios of sequences usable as a reference? If not, no bias is known, and candidates
   cannot be distinguished.
2. Estimate the squared error of every candidate's batch gradient.
3. Refuse candidates that break a constraint.
4. Take the simplest candidate within one standard error of the least error, plus what is not worth
   a correction. If the bias without correction is not known to within the noise of a batch, a
   candidate must be better than no correction at 95%.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.diagnosis.constraints import (
    EFFECTIVE_SEQUENCES,
    HEAVY_TAIL,
    JudgedCandidate,
    refused,
)
from rcdiag.diagnosis.rules import level
from rcdiag.formats import listed, number, plural, with_interval
from rcdiag.results import Diagnosis, MetricValue
from rcdiag.results.sweep import Candidate, Recommendation, SweepRow
from rcdiag.statistics.intervals import FEW_CLUSTERS
from rcdiag.usecases.sweep.candidates import EstimatorSetting
from rcdiag.usecases.sweep.scores import GradientScores, gradient_scores
from rcdiag.usecases.sweep.sketched_gradients import DIMENSIONS
from rcdiag.usecases.sweep.sums import SweepState

Values = Mapping[str, MetricValue]

# If sequence weights differ from 1 by less than this on average, there is nothing to correct.
NEGLIGIBLE = 0.01
# At most this many candidates are named in a sentence.
SHOWN = 5


class SweepEvidence(Struct, frozen=True):
    """The input of the recommendation."""

    state: SweepState
    rows: Mapping[str, Sequence[SweepRow]]  # family -> its rows
    values: Values  # of the mismatch suite
    bad_tokens: int  # unmasked tokens whose log-prob is NaN, infinite or impossible
    diagnosis: Diagnosis | None = None  # of the table; None: it was not diagnosed

    @property
    def sequences(self) -> int:
        return int(self.state.base("sequences").sum())

    @property
    def clusters(self) -> int:
        return self.state.num_clusters

    def row(self, candidate: str) -> SweepRow:
        """Return the row of a candidate's setting."""
        family, at = self.state.plan.place(candidate)
        return self.rows[family][at]


def recommend(evidence: SweepEvidence) -> Recommendation:
    """Recommend by the gate, the errors, the constraints and the one-standard-error rule."""
    diagnosis, values, state = evidence.diagnosis, evidence.values, evidence.state
    # A healthy table needs no correction, whether or not its candidates can be scored.
    answer, choice = "cannot-distinguish", None
    if diagnosis is not None and diagnosis.verdict == "healthy":
        answer, choice = "no-correction", "none"
    reasons = []
    if evidence.clusters < FEW_CLUSTERS:
        reasons.append(
            f"Few data, rough errors: {plural(evidence.sequences, 'sequence')} in "
            f"{plural(evidence.clusters, 'prompt group')}."
        )
    if unusable := _unusable(evidence):  # step 0: broken tables and invalid log-probs
        return _without_scores("fix-the-cause", [*reasons, unusable])
    if evidence.clusters < 2:
        reasons.append(
            "All sequences belong to one prompt group: no difference between candidates has a "
            "standard error."
        )
        return replace(_without_scores(answer, reasons), choice=choice)
    above_clamp = int(state.base("above_clamp").sum())
    broken = {
        name: refused(
            JudgedCandidate(evidence.row(name), evidence.sequences, state.tails[name], above_clamp)
        )
        for name in state.plan.candidates
    }
    distance = evidence.row("none").weight_distance
    away = np.nan if distance is None else distance
    verdict = None if diagnosis is None else diagnosis.verdict
    causes = _not_the_sampler(values) if verdict in (None, "inconclusive") else []
    if causes and away >= NEGLIGIBLE:  # step 0: the behavior policy is not the one that sampled
        return _unranked(evidence, broken, "fix-the-cause", [*reasons, *causes])
    doubt = _doubt(evidence)  # step 1
    scores = gradient_scores(state, referred=doubt is None)  # step 2
    if scores is None:
        reasons.append(
            "No sequence has a known advantage, or no gradient varies: no error can be estimated."
        )
        return replace(_unranked(evidence, broken, answer, reasons), choice=choice)
    method = _method(state, doubt is None)
    ranking = _Ranking(state.plan.candidates, scores, broken, method)
    if state.plan.without_signal:
        reasons.append(
            "The table has no rewards and no advantages: every sequence counts with the advantage "
            "1, so that only a change in how often tokens are used counts as bias."
        )
    reasons += [] if doubt is None else [doubt]
    needless = _nothing_to_correct(evidence, ranking, away, reasons)
    return _decided(evidence, ranking, doubt, reasons) if needless is None else needless


def _nothing_to_correct(
    evidence: SweepEvidence, ranking: _Ranking, away: float, reasons: list[str]
) -> Recommendation | None:
    """Recommend no correction where the mismatch is negligible; None where it is not.

    `away` is the mean distance of sequence weights from 1, `reasons` are those found so far.
    """
    if evidence.diagnosis is not None and evidence.diagnosis.verdict == "healthy":
        reasons.append(
            "The mismatch is rounding and costs nothing: weights of whole sequences differ from 1 "
            f"by {away:.2g} on average."
        )
        return ranking.recommendation("no-correction", reasons, choice="none")
    if away < NEGLIGIBLE:
        near = f"The weights of whole sequences differ from 1 by {away:.2g} on average"
        if evidence.diagnosis is not None and evidence.diagnosis.verdict == "inconclusive":
            # Columns that are copies of each other differ by nothing, and compare nothing.
            reasons.append(f"{near}, but the verdict on the table is inconclusive.")
            return _unranked(evidence, ranking.broken, "cannot-distinguish", reasons)
        reasons.append(f"{near}, below {NEGLIGIBLE:g}: there is nothing to correct.")
        return ranking.recommendation("no-correction", reasons, choice="none")
    return None


def _decided(
    evidence: SweepEvidence, ranking: _Ranking, doubt: str | None, reasons: list[str]
) -> Recommendation:
    """Choose among scored candidates: steps 3 and 4.

    `doubt` says why there is no reference, `reasons` are those found so far.
    """
    values, scores, broken = evidence.values, ranking.scores, ranking.broken
    reasons += _premises(values)
    if not ranking.allowed:  # step 3
        reasons.append(
            f"Every candidate breaks a constraint; without correction: {broken['none'][0]}."
        )
        return ranking.recommendation("cannot-distinguish", reasons, near=[])
    if doubt is not None:
        reasons.append(
            "Without a reference no candidate's bias is known, and training without a correction "
            "may be the worst choice."
        )
        return ranking.recommendation("cannot-distinguish", reasons, near=ranking.allowed)
    choice = ranking.simplest()  # step 4
    if not scores.resolved and (choice == "none" or not scores.surely_better(choice)):
        reasons.append(
            "The estimate of bias is too noisy: without correction bias² may be anything up to "
            f"{number(scores.most_bias('none'))} times the variance of a batch. More sequences "
            "would decide; until then these cannot be distinguished: "
            f"{listed(ranking.near, SHOWN)}."
        )
        return ranking.recommendation("cannot-distinguish", reasons)
    mean = values["ratio_mean_seq"]
    if choice != "none" and mean.low is not None and mean.low > 1.0:
        # Ratios with a mean above 1 are not relative to the sampler, so no correction by them is
        # recommended. A mean below 1 may be chance: the sample may lack rare large ratios.
        reasons.append(
            f"A correction assumes E[ratio] = 1; over sequences it is {with_interval(mean)}, above "
            "1: no candidate is scored with these ratios."
        )
        return _unranked(evidence, broken, "cannot-distinguish", reasons)
    reasons.append(ranking.why(choice))
    answer = "no-correction" if choice == "none" else "take"
    return ranking.recommendation(answer, reasons, choice=choice)


def _unusable(evidence: SweepEvidence) -> str | None:
    """Say why no correction helps before the table is repaired; None if one may help."""
    diagnosis, bad = evidence.diagnosis, evidence.bad_tokens
    if diagnosis is not None and diagnosis.verdict == "broken":
        broken = [cause.slug for cause in diagnosis.causes if cause.verdict == "broken"]
        return f"No weights repair {', '.join(broken or (one.slug for one in diagnosis.causes))}."
    if bad:
        return (
            f"{plural(bad, 'unmasked log-prob')} {'is' if bad == 1 else 'are'} NaN, infinite, "
            "positive or below -1e12: repair the dump before correcting."
        )
    return None


def _not_the_sampler(values: Values) -> list[str]:
    """Say why the recorded behavior policy did not sample; empty if it may have."""
    reasons = []
    kappa, z = values["kappa"], values["ratio_mean_z"]
    if kappa.level == "error":
        reasons.append(
            f"kappa is {with_interval(kappa)}, not near 1: the behavior log-probs "
            "are not those of the policy that sampled, so the ratios are noise and a correction "
            "with them does harm."
        )
    if z.level == "error":
        mean = values["ratio_mean"].value
        reasons.append(
            f"E[ratio] is {mean:.5g}, {abs(z.value or 0.0):.1f} standard errors from 1: the tokens "
            "were not sampled from the recorded behavior policy."
        )
    return reasons


def _doubt(evidence: SweepEvidence) -> str | None:
    """Say why sequence ratios cannot be the reference: few effective sequences, or a heavy tail."""
    ess, tail = evidence.values["ess_seq"].value, evidence.values["khat_seq"]
    effective = 0.0 if ess is None or not np.isfinite(ess) else ess * evidence.sequences
    if level(EFFECTIVE_SEQUENCES, effective) != "ok":
        return (
            f"The reference (untruncated ratios of sequences) has an ESS of {effective:.1f}; it "
            f"needs more than {EFFECTIVE_SEQUENCES.warning:.0f}."
        )
    # No level means that all ratios are near 1, where even a heavy tail changes no estimate.
    if tail.level is not None and tail.value is not None and level(HEAVY_TAIL, tail.value) != "ok":
        return (
            f"k-hat of the ratios of sequences is {tail.value:.2f}, not below "
            f"{HEAVY_TAIL.warning:g}: their tail is too heavy for a reference."
        )
    return None


def _premises(values: Values) -> list[str]:
    """Say which assumptions of the reference are in doubt, and where to look for a cause first."""
    reasons = []
    mean, share = values["ratio_mean"], values["top_share"].value
    if mean.low is not None and mean.high is not None and not mean.low <= 1.0 <= mean.high:
        reasons.append(
            f"The reference assumes E[ratio] = 1; over tokens it is {with_interval(mean)}, and the "
            "interval excludes 1."
        )
    if share is not None and share > 0.5:
        reasons.append(
            f"The top 0.1% of tokens hold {share:.0%} of the squared log-ratios: look at what they "
            "have in common first."
        )
    return reasons


def _method(state: SweepState, referred: bool) -> str:
    """Describe how candidates were scored."""
    batches, baseline = len(state.steps), state.plan.baseline
    of = "the table" if batches == 1 else f"one of the {batches} steps"
    error, bias = "variance", ""
    if referred:
        error = "squared bias plus variance"
        bias = (
            "; the bias is the distance from the gradient weighted by the untruncated ratios of "
            "whole sequences, by products of different prompt groups"
        )
    signal = "recorded advantages" if baseline is None else f"rewards less {baseline.kind}"
    if state.plan.without_signal:
        signal = "the advantage 1"
    return (
        f"The efficiency is the variance without correction, divided by the {error} of the mean "
        f"gradient of {of}. Gradients are those of the output bias, (1 - p) by token id in "
        f"{DIMENSIONS} dimensions less the target's mean, times {signal}{bias}. Weights are scaled "
        "to a mean of 1. This is an approximation: no model was run, and a bias that averages out "
        "over the contexts of a token id is not seen."
    )


class _Ranking(Struct, frozen=True):
    """The candidates with their scores and the constraints that they break."""

    candidates: Mapping[str, EstimatorSetting]
    scores: GradientScores
    broken: Mapping[str, list[str]]  # candidate -> the constraints that it breaks
    method: str

    @property
    def allowed(self) -> list[str]:
        return [name for name, constraints in self.broken.items() if not constraints]

    @property
    def best(self) -> str:
        """Return the candidate with the least error of those that break no constraint."""
        return max(self.allowed, key=self.scores.place)

    @property
    def near(self) -> list[str]:
        """Return candidates that break no constraint, within one standard error of the best."""
        best = self.best if self.allowed else ""
        return [name for name in self.allowed if self.scores.within(best, name)]

    def simplest(self) -> str:
        """Return the simplest candidate of `near`; of equally simple ones the better."""
        return min(
            self.near,
            key=lambda name: (self.candidates[name].complexity, -self.scores.place(name)),
        )

    def why(self, chosen: str) -> str:
        """Explain the choice of a candidate by the best one and those close to it."""
        best, near, none = self.best, self.near, "training without a correction"
        title = none.capitalize() if best == "none" else best
        lowest = f"{title} has the lowest estimated gradient error"
        if best != chosen:
            return (
                f"{lowest}, but {none if chosen == 'none' else chosen} is the simplest of "
                f"{len(near)} candidates within one standard error of it."
            )
        others = [name for name in near if name != chosen]
        if others:
            return f"{lowest}; not distinguishable from it: {listed(others, SHOWN)}."
        return f"{lowest}."

    def recommendation(
        self,
        answer: str,
        reasons: list[str],
        *,
        choice: str | None = None,
        near: list[str] | None = None,
    ) -> Recommendation:
        """Return the candidates with their errors, and with their ranks if one is chosen.

        `near` are the indistinguishable candidates, by default those of the property `near`.
        """
        candidates, allowed = self.candidates, [] if choice is None else self.allowed
        near = self.near if near is None else near
        order = sorted(
            candidates, key=lambda name: (bool(self.broken[name]), -self.scores.place(name))
        )
        return Recommendation(
            answer=answer,
            choice=choice,
            indistinguishable=[name for name in order if name in near],
            reasons=reasons,
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
    evidence: SweepEvidence, broken: Mapping[str, list[str]], answer: str, reasons: list[str]
) -> Recommendation:
    """Return candidates without scores and ranks, because these ratios cannot distinguish them."""
    return replace(
        _without_scores(answer, reasons),
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
            for name, setting in evidence.state.plan.candidates.items()
        ],
    )


def _without_scores(answer: str, reasons: list[str]) -> Recommendation:
    return Recommendation(
        answer=answer,
        choice=None,
        indistinguishable=[],
        reasons=reasons,
        method="no candidate was scored",
        candidates=[],
    )
