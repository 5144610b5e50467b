"""The result of `rcdiag sweep` holds a table per estimator family, and which estimator to take."""

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

# A smaller gain, relative to the noise without correction, is not worth a correction.
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
        "The bounds of a setting: `lower` and `upper`; where rejection goes with weights "
        "`rs_lower` and `rs_upper` are those of rejection, `is_upper` is that of the weights.",
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
    """A row describes one setting of an estimator family on the whole table, without clamps."""

    bounds: Bounds
    kept_tokens: KeptTokens
    kept_sequences: KeptSequences
    kept_groups: Annotated[
        int,
        Doc(
            "Number of prompt groups with at least two kept sequences, of those that have two: "
            "fewer give a group baseline nothing to compare.",
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
            "Share of the sequences with at least one token that stays: the acceptance.",
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
            "Effective sample size as the newest verl logs it: of tokens, of applied weights "
            "before rejection; null without weights.",
            unit="fraction",
            formula="1 / E[(w / (E[w] + 1e-8))^2] over tokens",
            healthy="verl's guide wants 0.5; it does not see what is rejected: see "
            "ess_token_applied",
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
            direction="below 1 where truncation and rejection take more than ratios above 1 add: "
            "the gradient shrinks with it",
            healthy="ideal 1; not judged",
            example=_TOY + "0.9",
            see=("weight_sum", "rollout_corr/rollout_is_mean"),
        ),
    ]
    lost_mass: Annotated[
        MetricValue,
        Doc(
            "Share of the policy that trains that rejection throws away, at the level of the "
            "rejection.",
            unit="share",
            formula="E[ratio 1(rejected)] / E[ratio] over tokens or sequences",
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
            "Variance over sequences of the mean applied weight: what weighting adds in noise.",
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
            "Distance of the applied weights from the ratios of whole sequences, given that those "
            "average 1. The mean of anything between -1 and 1 is off by this at most. Ratios "
            "beyond the bounds are left out. For weights by token it is a distance, no bound.",
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
            "Mean reward of the kept sequences less that of all: whether rejection picks by "
            "reward; null without rewards.",
            unit="reward",
            formula="E[reward | kept] - E[reward]",
            direction="positive where sequences with high rewards are kept",
            healthy="ideal 0; where its interval leaves 0 out " + _REFUSES,
            example=_TOY + "0.5",
            see=("keep_reward_correlation", "advantage_shift"),
        ),
    ]
    advantage_shift: Annotated[
        MetricValue,
        Doc(
            "Mean recorded advantage of the kept sequences less that of all; null without "
            "advantages.",
            unit="advantage",
            formula="E[advantage | kept] - E[advantage] over sequences",
            direction="positive where sequences with high advantages are kept",
            healthy="ideal 0; not judged",
            example="advantages 1 and -1, the first sequence kept: 1",
            see=("reward_shift",),
        ),
    ]
    kept_by_length: Annotated[
        list[Number],
        Doc(
            "Share of the tokens that stay, in each quarter of the sequences by length, the "
            "shortest first: unequal ones are the length trap.",
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
            healthy="ideal 0; where a sequence lies above the clamp " + _REFUSES,
            example=_TOY + "0",
            see=("unsafe_tokens", "unsafe_sequences"),
        ),
    ]


class Configurations(Part, frozen=True, kw_only=True):
    """Configurations are what a reader pastes into a trainer for each setting of a family.

    Text that settings have in common stands once, as a template.
    """

    templates: Annotated[
        list[str],
        Doc("YAML for a trainer's configuration, the character U+0001 in place of every number."),
    ]
    entries: Annotated[
        list[str],
        Doc(
            "For every row of a family the number of its template, counted from 0, and the numbers "
            "to put there; empty where the trainer cannot express the setting.",
            example='"0 0.5 2.0": the first template with 0.5 and 2.0',
            see=("templates",),
            as_many_as="../rows",
        ),
    ]


class SweepFamily(Part, frozen=True, kw_only=True):
    """A family holds one row for each setting of an estimator family that is tried."""

    title: Annotated[str, Doc("Name of an estimator family as figures and tables print it.")]
    about: Annotated[str, Doc("What an estimator family does to weights and to the loss mask.")]
    scope: Annotated[
        str,
        Doc(
            "What the bounds of an estimator family hold by: token, sequence or geometric mean.",
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
            "By trainer, what a reader pastes into its configuration for each setting of a family; "
            "empty where a family has more than 200 settings, as a fine `--thresholds` makes them.",
            see=("templates", "entries"),
            added=True,
        ),
    ] = field(default_factory=dict)


class Candidate(Part, frozen=True, kw_only=True):
    """A candidate is an estimator with its setting, as the recommendation judges it."""

    name: Annotated[str, Doc("Name of a candidate, which `rcdiag explain` answers.")]
    family: Annotated[str, Doc("The estimator family that a candidate belongs to, or `none`.")]
    bounds: Bounds
    efficiency: Annotated[
        MetricValue,
        Doc(
            "How close the gradient of a batch comes to that of the target policy, free of scale: "
            "the noise of the gradient without correction over the squared error of the "
            "candidate's, which is squared bias plus noise. `method` says how both were estimated. "
            "Null where no bias is known: the recorded policy did not sample, too few sequences "
            "carry the ratios, no advantage is known, or the mean ratio of sequences is above 1.",
            unit="none",
            formula="Var[G of no correction] / (|E[G] - E[R]|^2 + Var[G]); G the candidate's mean "
            "gradient, R that of untruncated ratios",
            healthy="ideal 1: as good as no correction where there is nothing to correct; it ranks "
            "candidates of one table (rcdiag's proposal)",
            example="squared bias 0 and noise 1.25: 0.8",
            see=("gradient_bias", "gradient_noise", "within_error_of_best"),
        ),
    ]
    refused: Annotated[
        list[str],
        Doc(
            "Constraints that a candidate breaks, in words: acceptance below 0.7, lost mass above "
            "0.1, fewer than 30 effective sequences, a tail too heavy, keeping that goes with the "
            "length, a reward shift, ratios above the trainer's clamp.",
            healthy="ideal: none; the bounds are rcdiag's proposal, that of the acceptance is "
            "after trust region masking, arXiv 2512.23075",
            example="keeps 21.0% of the sequences, below 70%",
        ),
    ]
    rank: Annotated[
        int | None,
        Doc(
            "Place of a candidate by efficiency, from 1; null where it is refused, and of all "
            "candidates where the answer is fix-the-cause or cannot-distinguish.",
            see=("efficiency", "refused"),
        ),
    ]
    within_error_of_best: Annotated[
        bool,
        Doc(
            "Whether a candidate lies within one standard error of the best, and 5%: the table "
            "does not tell the two apart, or the difference is not worth a correction.",
            see=("efficiency",),
        ),
    ]
    gradient_bias: Annotated[
        Number | None,
        Doc(
            "Squared bias of the mean gradient of a batch, in units of the noise without "
            "correction; null where nothing is ranked.",
            unit="none",
            formula="|E[G] - E[R]|^2 / Var[G of no correction], not below 0",
            healthy="ideal 0; below gradient_noise the batch is too small for the bias to matter",
            example="a bias as long as the noise without correction: 1",
            see=("efficiency", "gradient_noise"),
            heading="bias²",
            added=True,
        ),
    ] = None
    gradient_bias_high: Annotated[
        Number | None,
        Doc(
            "Upper end of the 95% interval of gradient_bias. Where it is far above 1 an estimate "
            "of 0 says nothing: the reference is too noisy.",
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
            "where nothing is ranked.",
            unit="none",
            formula="Var[G] / Var[G of no correction]; weights scaled to a mean of 1",
            healthy="1 without correction",
            example="sequences with weights of variance 0.25 that go with nothing else: 1.25",
            see=("efficiency", "gradient_bias", "ess_seq_applied"),
            heading="variance",
            added=True,
        ),
    ] = None


class Recommendation(Part, frozen=True, kw_only=True):
    """A recommendation says which estimator to take, why, and which candidates it compares."""

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
            "The candidate that is recommended, `none` for no correction; null where the answer is "
            "fix-the-cause or cannot-distinguish: `reasons` say why.",
            see=("take", "none", "indistinguishable"),
        ),
    ]
    indistinguishable: Annotated[
        list[str],
        Doc(
            "Candidates within one standard error of the best, and 5%: the simplest of them is "
            "chosen. Where the answer is cannot-distinguish, those that may be the best.",
            formula="squared error less that of the best <= standard error of the difference over "
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
            "The candidate that the trainer's own settings amount to, as they are where its "
            "correction is switched on and nothing else is set; null where they are none of the "
            "candidates.",
            example="verl-0.9: seq_tis_2",
            see=("choice", "none"),
            added=True,
        ),
    ] = None
    guide: Annotated[
        str | None,
        Doc(
            "What verl's own guide (docs/algo/rollout_corr_math.md, section 5.3) would choose by "
            "the size of the mismatch and the length of responses, and why the data say otherwise; "
            "null where no KL is known. The guide gives no numbers: rcdiag takes k3 below 0.001 "
            "for negligible and above 0.01 for severe, and a median of 1,000 tokens for long.",
            see=("choice", "refused", "indistinguishable"),
            added=True,
        ),
    ] = None
    choice_yaml: Annotated[
        dict[str, str],
        Doc(
            "By trainer, the YAML that a reader pastes into its configuration to take the choice; "
            "where the trainer cannot express it a comment that says so.",
            see=("choice", "templates", "entries"),
            added=True,
        ),
    ] = field(default_factory=dict)


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
            "The three lengths that cut the sequences of a sweep into quarters.",
            unit="tokens",
            see=("kept_by_length",),
            entries=3,
        ),
    ]
    families: Annotated[
        dict[str, SweepFamily],
        Doc(
            "Every estimator family over its settings, by name.", see=("bounds", "weight_distance")
        ),
    ]
    recommendation: Annotated[
        Recommendation, Doc("Which estimator to take, and why.", see=("answer", "choice"))
    ]
    forecast: Annotated[
        Forecast,
        Doc(
            "What happens to acceptance and effective sample size at longer responses.",
            see=("kl_token", "accepted_seq", "holds"),
        ),
    ]

    def _summary(self) -> Summary:
        """Summarise the candidates that are not refused, the best first."""
        advice = self.recommendation
        ranked = sorted(
            (candidate for candidate in advice.candidates if candidate.rank is not None),
            key=lambda candidate: candidate.rank or 0,
        )
        rows = [
            (
                str(candidate.rank),
                candidate.name,
                *measured(candidate.efficiency),
            )
            for candidate in ranked
        ]
        choice = f" {advice.choice}" if advice.choice else ""
        about = f"{self.behavior} -> {self.target}, {self.size}: {advice.answer}{choice}"
        return Summary(
            about, ("rank", "candidate", "efficiency", "95% interval"), rows, "candidates"
        )
