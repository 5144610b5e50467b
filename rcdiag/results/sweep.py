"""The result of `rcdiag sweep`: a table for each estimator family, and a recommendation."""

from __future__ import annotations

from typing import Annotated

from msgspec import field
from msgspec.structs import replace

from rcdiag.formats import measured
from rcdiag.results.base import (
    ESS_SEQ_APPLIED,
    ESS_TOKEN_APPLIED,
    PROVENANCE,
    RATIO,
    TRUNCATION_LOSS,
    Behavior,
    BiasBound,
    KeepLengthCorrelation,
    KeptSequences,
    KeptTokens,
    MetricValue,
    NumClusters,
    Provenance,
    Target,
    TrainerName,
)
from rcdiag.results.doc import Anything, Doc, Number
from rcdiag.results.forecast import Forecast
from rcdiag.results.parts import Part
from rcdiag.results.show import KindName, Measured, Summary

# A smaller gain, relative to the noise without correction, does not justify a correction.
WORTH = 0.05

_REFUSES = "the recommendation refuses (rcdiag's proposal)"
_OVER_ALL = "over all sequences, w their mean weight, 0 where rejected"
# Worked numbers: the first sequence is kept and truncated at 1.5, the second one rejected.
_TOY = (
    "geo_rs_seq_tis with rs_lower 0.5, rs_upper 2, is_upper 1.5, log-ratios [0.1, -0.1, 1.5], "
    "[-1.2, -0.5], rewards 1 and 0: "
)

Bounds = Annotated[
    dict[str, Number],
    Doc(
        "The bounds of a setting: `lower` and `upper`; if rejection is combined with weights, "
        "`rs_lower` and `rs_upper` are bounds of the rejection, `is_upper` of the weights.",
        unit="ratio; nats for k2 and k3",
        direction="ratios that are kept, " + RATIO + "; not mirrored as k1 bounds are in verl",
        example='{"rs_lower": 0.99, "rs_upper": 1.01, "is_upper": 2.0}',
        see=("mirrored-bounds", "TIS", "IcePop", "MIS"),
        heading="best setting",
    ),
]


class SweepProvenance(Provenance):
    """Sweep provenance says where the result of a sweep comes from."""

    trainer: TrainerName
    thresholds: Annotated[
        int,
        Doc(
            "Number of settings that are tried in each estimator family.",
            example="rcdiag sweep rollouts.parquet --thresholds 60",
        ),
    ]


class SweepRow(Part, frozen=True, kw_only=True):
    """A row is one setting of an estimator family on the whole table, without clamps."""

    bounds: Bounds
    kept_tokens: KeptTokens
    kept_sequences: KeptSequences
    kept_groups: Annotated[
        int,
        Doc(
            "Number of prompt groups with at least two kept sequences, which a group baseline "
            "needs, among the groups that have two.",
            unit="groups",
            formula="count of groups with 2 kept sequences or more",
            example=_TOY + "0",
            see=("groups_below_two", "kept_sequences"),
        ),
    ]
    kept_token_share: Annotated[
        MetricValue,
        Doc(
            "Share of the tokens that stay in the loss mask.",
            unit="share",
            formula="kept_tokens / all unmasked tokens",
            healthy="ideal 1; verl's guide: masked share below 0.1; see kept_sequence_share",
            example=_TOY + "0.6",
            see=("kept_tokens", "kept_sequence_share"),
            heading="kept",
        ),
    ]
    kept_sequence_share: Annotated[
        MetricValue,
        Doc(
            "Share of the sequences with at least one token that stays in the loss: the "
            "acceptance.",
            unit="share",
            formula="kept_sequences / all sequences with an unmasked token",
            healthy="ideal 1; above 0.9 good (rcdiag's proposal); below 0.7 the recommendation "
            "refuses (after trust region masking, arXiv 2512.23075)",
            example=_TOY + "0.5",
            see=("kept_sequences", "lost_mass"),
        ),
    ]
    ess_token_applied: Annotated[Number | None, ESS_TOKEN_APPLIED]
    ess_seq_applied: Annotated[MetricValue, ESS_SEQ_APPLIED]
    ess_trainer: Annotated[
        Number | None,
        Doc(
            "Effective sample size as the newest verl logs it: over tokens, by applied weights "
            "before rejection; null without weights.",
            unit="fraction",
            formula="1 / E[(w / (E[w] + 1e-8))^2] over tokens",
            healthy="verl's guide wants 0.5; rejection does not change it: see ess_token_applied",
            example=_TOY + "0.6945",
            see=("rollout_corr/rollout_is_eff_sample_size", "ess_token_applied"),
        ),
    ]
    mean_weight: Annotated[
        MetricValue,
        Doc(
            "Mean weight of all tokens, rejected ones with weight 0.",
            unit="ratio",
            formula="sum of applied weights of kept tokens / all unmasked tokens",
            direction="below 1 if truncation and rejection remove more than ratios above 1 add; "
            "the gradient shrinks with it",
            healthy="ideal 1; not judged",
            example=_TOY + "0.9",
            see=("weight_sum", "rollout_corr/rollout_is_mean"),
        ),
    ]
    lost_mass: Annotated[
        MetricValue,
        Doc(
            "Share of the target policy's probability mass that is rejected or has weight 0, at "
            "the level of the bounds.",
            unit="share",
            formula="E[ratio 1(rejected or weight 0)] / E[ratio] over tokens or sequences",
            direction=RATIO,
            healthy="ideal 0; above 0.1 " + _REFUSES,
            example=_TOY + "0.03917",
            see=("lost_target_mass_token", "lost_target_mass_seq", "truncation_loss"),
        ),
    ]
    truncation_loss: Annotated[MetricValue, TRUNCATION_LOSS]
    weight_variance: Annotated[
        Number | None,
        Doc(
            "Variance over sequences of the mean applied weight: the noise that weights add.",
            unit="ratio^2",
            formula="E[w^2] - E[w]^2 " + _OVER_ALL,
            healthy="ideal 0; not judged by itself: "
            "weight_distance^2 + weight_variance / n picks the best setting "
            "of a family",
            example=_TOY + "0.5625",
            see=("weight_distance", "ess_seq_applied"),
        ),
    ]
    weight_distance: Annotated[
        Number | None,
        Doc(
            "Distance of the applied weights from the ratios of whole sequences, given that the "
            "ratios have a mean of 1. It bounds the bias of the mean of any quantity between -1 "
            "and 1. Ratios beyond the bounds do not enter. For token weights it is only a "
            "distance, no bound.",
            unit="none",
            formula="max(1 - E[w], 0) + 2 E[(w - prod ratio)+] " + _OVER_ALL,
            direction=RATIO,
            healthy="ideal 0, at most 2; not judged by itself",
            example=_TOY + "0.25",
            see=("bias_bound", "weight_variance", "efficiency"),
            heading="bias",
        ),
    ]
    bias_bound: BiasBound
    reward_shift: Annotated[
        MetricValue,
        Doc(
            "Mean reward of the kept sequences minus that of all: whether rejection depends on the "
            "reward; null without rewards.",
            unit="reward",
            formula="E[reward | kept] - E[reward]",
            direction="positive if sequences with high rewards are kept",
            healthy="ideal 0; if its interval excludes 0 " + _REFUSES,
            example=_TOY + "0.5",
            see=("keep_reward_correlation", "advantage_shift"),
        ),
    ]
    advantage_shift: Annotated[
        MetricValue,
        Doc(
            "Mean recorded advantage of the kept sequences minus that of all; null without "
            "advantages.",
            unit="advantage",
            formula="E[advantage | kept] - E[advantage] over sequences",
            direction="positive if sequences with high advantages are kept",
            healthy="ideal 0; not judged",
            example="advantages 1 and -1, the first sequence kept: 1",
            see=("reward_shift",),
        ),
    ]
    kept_by_length: Annotated[
        list[Number],
        Doc(
            "Share of the tokens that stay, in each quarter of the sequences by length, the "
            "shortest first: if they are unequal, rejection depends on length.",
            unit="share",
            formula="kept tokens / tokens of the sequences of a quarter",
            healthy="ideal: four equal numbers; see keep_length_correlation",
            example="all of the short sequences kept, and half of the longest: 1, 1, 0.8, 0.5",
            entries=4,
            see=("keep_length_correlation", "length"),
        ),
    ]
    keep_length_correlation: KeepLengthCorrelation
    clamped_share: Annotated[
        Number,
        Doc(
            "Share of tokens, or of sequences for bounds by sequence, whose log-ratio reaches the "
            "clamp of trainers, 20 nats.",
            unit="share",
            formula="E[1(|log_ratio| >= 20)] over tokens, or of the sum over sequences",
            healthy="ideal 0; if a sequence lies above the clamp " + _REFUSES,
            example=_TOY + "0",
            see=("unsafe_tokens", "unsafe_sequences"),
        ),
    ]


class Configurations(Part, frozen=True, kw_only=True):
    """Configurations are YAML to paste into a trainer, for each setting of a family.

    Text that settings have in common is stored once, as a template.
    """

    templates: Annotated[
        list[str],
        Doc("YAML for a trainer's configuration with the character U+0001 instead of numbers."),
    ]
    entries: Annotated[
        list[str],
        Doc(
            "For every row of a family the index of its template, from 0, and the numbers to fill "
            "in; empty if the trainer cannot express the setting.",
            example='"0 0.5 2.0": the first template with 0.5 and 2.0',
            see=("templates",),
            as_many_as="../rows",
        ),
    ]


class SweepFamily(Part, frozen=True, kw_only=True):
    """A family has one row for each setting of an estimator family that was tried."""

    title: Annotated[str, Doc("Name of an estimator family in figures and tables.")]
    about: Annotated[str, Doc("What an estimator family does to weights and to the loss mask.")]
    scope: Annotated[
        str,
        Doc(
            "What the bounds of a family apply to: tokens, sequences or geometric means.",
            see=("token", "sequence", "geometric"),
            one_of=("token", "sequence", "geometric"),
        ),
    ]
    axis: Annotated[
        str, Doc("The bound that the rows of an estimator family are ordered by.", see=("bounds",))
    ]
    rows: Annotated[
        list[SweepRow],
        Doc(
            "One row for each setting of an estimator family that was tried.",
            unit="rows",
            fewest=1,
        ),
    ]
    configurations: Annotated[
        dict[str, Configurations],
        Doc(
            "Trainer -> YAML to paste into its configuration, for each setting of a family; empty "
            "if a family has more than 200 settings (`--thresholds`).",
            see=("templates", "entries"),
            added=True,
        ),
    ] = field(default_factory=dict)


class Candidate(Part, frozen=True, kw_only=True):
    """A candidate is one setting of an estimator, with its numbers in the recommendation."""

    name: Annotated[str, Doc("Name of a candidate, which `rcdiag explain` answers.")]
    family: Annotated[str, Doc("The estimator family that a candidate belongs to, or `none`.")]
    bounds: Bounds
    efficiency: Annotated[
        MetricValue,
        Doc(
            "How close the gradient of a batch is to that of the target policy, up to a scale: "
            "noise of the gradient without correction / squared error of the candidate's gradient, "
            "which is squared bias plus noise. `method` says how both were estimated. Null if the "
            "bias is unknown: the recorded policy did not sample, the effective number of "
            "sequences is too small, no advantage is known, or the mean ratio of sequences is "
            "above 1.",
            unit="none",
            formula="Var[G of no correction] / (|E[G] - E[R]|^2 + Var[G]); G the candidate's mean "
            "gradient, R that of untruncated ratios",
            healthy="ideal 1: as good as no correction if there is nothing to correct; it ranks "
            "candidates of one table (rcdiag's proposal)",
            example="squared bias 0 and noise 1.25: 0.8",
            see=("gradient_bias", "gradient_noise", "within_error_of_best"),
        ),
    ]
    refused: Annotated[
        list[str],
        Doc(
            "Constraints that a candidate breaks, as sentences: acceptance below 0.7, lost mass "
            "above 0.1, fewer than 30 effective sequences, a heavy tail, rejection that depends on "
            "length, a reward shift, ratios above the trainer's clamp.",
            healthy="ideal: none; the bounds are rcdiag's proposal, except that the acceptance is "
            "after trust region masking, arXiv 2512.23075",
            example="keeps 21.0% of the sequences, below 70%",
            see=(
                *("constraint.acceptance", "constraint.lost_mass", "constraint.sample_size"),
                *("constraint.tail", "constraint.length", "constraint.reward", "constraint.clamp"),
            ),
        ),
    ]
    rank: Annotated[
        int | None,
        Doc(
            "Rank of a candidate by efficiency, from 1; null if it is refused, and for all "
            "candidates if the answer is fix-the-cause or cannot-distinguish.",
            see=("efficiency", "refused"),
        ),
    ]
    within_error_of_best: Annotated[
        bool,
        Doc(
            "Whether a candidate's error is within one standard error of the best, plus 5%: the "
            "table cannot distinguish the two, or the difference does not justify a correction.",
            see=("efficiency",),
        ),
    ]
    gradient_bias: Annotated[
        Number | None,
        Doc(
            "Squared bias of the mean gradient of a batch, in units of the noise without "
            "correction; null if nothing is ranked.",
            unit="none",
            formula="|E[G] - E[R]|^2 / Var[G of no correction], not below 0",
            healthy="ideal 0; below gradient_noise the batch is too small for the bias to matter",
            example="a bias of the size of the noise without correction: 1",
            see=("efficiency", "gradient_noise"),
            heading="bias²",
            added=True,
        ),
    ] = None
    gradient_bias_high: Annotated[
        Number | None,
        Doc(
            "Upper end of the 95% interval of gradient_bias. If it is far above 1, an estimate of "
            "0 says nothing: the reference is too noisy.",
            unit="none",
            formula="gradient_bias + t x its standard error over prompt groups",
            healthy="below 1",
            example="an estimate of 0 with a standard error of 3: 5.9",
            see=("gradient_bias", "cannot-distinguish"),
            heading="up to",
            added=True,
        ),
    ] = None
    gradient_noise: Annotated[
        Number | None,
        Doc(
            "Variance of the mean gradient of a batch, in units of that without correction; null "
            "if nothing is ranked.",
            unit="none",
            formula="Var[G] / Var[G of no correction]; weights scaled to a mean of 1",
            healthy="1 without correction",
            example="sequence weights of variance 0.25, independent of all else: 1.25",
            see=("efficiency", "gradient_bias", "ess_seq_applied"),
            heading="variance",
            added=True,
        ),
    ] = None


class Recommendation(Part, frozen=True, kw_only=True):
    """A recommendation says which estimator to take, why, and which candidates were compared."""

    answer: Annotated[
        str,
        Doc(
            "What a sweep recommends: take, no-correction, fix-the-cause or cannot-distinguish.",
            see=("take", "no-correction", "fix-the-cause", "cannot-distinguish"),
            one_of=("take", "no-correction", "fix-the-cause", "cannot-distinguish"),
        ),
    ]
    choice: Annotated[
        str | None,
        Doc(
            "The recommended candidate, `none` for no correction; null if the answer is "
            "fix-the-cause or cannot-distinguish: `reasons` say why.",
            see=("take", "none", "indistinguishable"),
        ),
    ]
    indistinguishable: Annotated[
        list[str],
        Doc(
            "Candidates within one standard error of the best, plus 5%: the simplest of them is "
            "chosen. If the answer is cannot-distinguish, they are the ones that may be best.",
            formula="squared error - that of the best <= standard error of the difference over "
            "clusters + 0.05 Var[G of no correction]",
            example="none among them: no correction",
            see=("efficiency", "no-correction"),
        ),
    ]
    reasons: Annotated[list[str], Doc("Why a sweep recommends what it does, in sentences.")]
    method: Annotated[
        str, Doc("How the efficiency of candidates was estimated.", see=("efficiency",))
    ]
    candidates: Annotated[
        list[Candidate],
        Doc(
            "Every estimator that the recommendation chooses among.",
            see=("efficiency", "refused"),
            heading="candidate",
        ),
    ]
    trainer_default: Annotated[
        str | None,
        Doc(
            "The candidate that equals the trainer's defaults, with its correction switched on and "
            "nothing else set; null if none of the candidates does.",
            example="verl-0.9: seq_tis_2",
            see=("choice", "none"),
            added=True,
        ),
    ] = None
    guide: Annotated[
        str | None,
        Doc(
            "What verl's own guide (docs/algo/rollout_corr_math.md, section 5.3) would choose by "
            "the size of the mismatch and the length of responses, and how that compares with the "
            "data; null if k3 is unknown. The guide gives no numbers: rcdiag takes k3 below 0.001 "
            "as negligible and above 0.01 as severe, and a median of 1,000 tokens as long.",
            see=("choice", "refused", "indistinguishable"),
            added=True,
        ),
    ] = None
    choice_yaml: Annotated[
        dict[str, str],
        Doc(
            "Trainer -> YAML to paste into its configuration for the choice; a comment if the "
            "trainer cannot express it.",
            see=("choice", "templates", "entries"),
            added=True,
        ),
    ] = field(default_factory=dict)

    @property
    def ranked(self) -> list[Candidate]:
        """Return the candidates that are not refused, the best first."""
        ranked = (one for one in self.candidates if one.rank is not None)
        return sorted(ranked, key=lambda one: one.rank or 0)


class SweepResult(Measured, frozen=True, kw_only=True):
    """The result of `rcdiag sweep` compares estimators on one pair of policies."""

    kind: KindName = "sweep"
    provenance: Annotated[dict[str, Anything], replace(PROVENANCE, keys=SweepProvenance)]
    behavior: Behavior
    target: Target
    num_groups_with_two: Annotated[
        int,
        Doc(
            "Number of prompt groups of at least two sequences.",
            unit="groups",
            see=("few-clusters",),
        ),
    ]
    num_clusters: NumClusters
    length_quartiles: Annotated[
        list[Number],
        Doc(
            "The three quartiles of the sequence lengths of a sweep.",
            unit="tokens",
            see=("kept_by_length",),
            entries=3,
        ),
    ]
    families: Annotated[
        dict[str, SweepFamily],
        Doc("Family -> the rows of all its settings.", see=("bounds", "weight_distance")),
    ]
    recommendation: Annotated[
        Recommendation, Doc("Which estimator to take, and why.", see=("answer", "choice"))
    ]
    forecast: Annotated[
        Forecast,
        Doc(
            "Acceptance and effective sample size that are expected at longer responses.",
            see=("kl_token", "accepted_seq", "holds"),
        ),
    ]

    def _summary(self) -> Summary:
        """Summarise the candidates that are not refused, the best first."""
        advice = self.recommendation
        rows = [(str(one.rank), one.name, *measured(one.efficiency)) for one in advice.ranked]
        choice = f" {advice.choice}" if advice.choice else ""
        about = f"{self.behavior} -> {self.target}, {self.size}: {advice.answer}{choice}"
        return Summary(
            about, ("rank", "candidate", "efficiency", "95% interval"), rows, "candidates"
        )
