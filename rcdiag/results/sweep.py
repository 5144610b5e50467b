"""The result of `rcdiag sweep` holds a table per estimator family, and which estimator to take."""

from __future__ import annotations

from typing import Annotated

from msgspec import field
from msgspec.structs import replace

from rcdiag.formats import measured
from rcdiag.results.base import (
    ESS_SEQ_APPLIED,
    ESS_TOKEN_APPLIED,
    FORMAT_VERSION,
    LOG_RATIO,
    PROVENANCE,
    RATIO,
    TRUNCATION_LOSS,
    Behavior,
    BiasBound,
    Findings,
    FormatVersion,
    KeepLengthCorrelation,
    KeptSequences,
    KeptTokens,
    KindName,
    MetricValue,
    NumClusters,
    NumSequences,
    NumTokens,
    Provenance,
    Target,
    TrainerName,
)
from rcdiag.results.diagnosis import DiagnosisOfTable
from rcdiag.results.doc import Anything, Doc, Number
from rcdiag.results.parts import Part
from rcdiag.results.show import Shown, Summary, size

# A smaller gain, relative to the noise without correction, is not worth a correction.
WORTH = 0.05

_REFUSES = "the recommendation refuses (rcdiag's proposal)"
_OVER_ALL = "over all sequences, w their mean weight, 0 where rejected"
# Worked numbers: the first sequence is kept and truncated at 1.5, the second one rejected.
_TOY = (
    "geo_rs_seq_tis with rs_lower 0.5, rs_upper 2, is_upper 1.5, log-ratios [0.1, -0.1, 1.5], "
    "[-1.2, -0.5], rewards 1 and 0: "
)
_TABLE = "kl_token 0.001, 1,000 tokens, one KL for all sequences"
_HELD_OUT = "by the fit to the shorter half of the sequences."
_SEQ = "log lower <= sum log_ratio <= log upper"
_GEO = "log lower <= mean log_ratio <= log upper"

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


class ForecastPoint(Part, frozen=True, kw_only=True):
    """A point gives the acceptance and effective sample size expected at one response length."""

    response_length: Annotated[
        int, Doc("Response length of a point of the forecast.", unit="tokens")
    ]
    ess_seq: Annotated[
        Number,
        Doc(
            "Effective sample size of sequences by their raw ratios that is expected at a length.",
            unit="fraction",
            formula="e^(-2 k T) averaged over k, T the length",
            healthy="ideal 1",
            example=_TABLE + ": 0.135",
            see=("kl_token", "heterogeneity"),
        ),
    ]
    accepted_seq: Annotated[
        Number,
        Doc(
            "Share of the sequences of a length that a window on the product of ratios is expected "
            "to keep.",
            unit="share",
            formula="P(" + _SEQ + ") = Phi((log upper + k T) / s) - Phi((log lower + k T) / s), "
            "s^2 = 2 k T, averaged over k",
            direction=LOG_RATIO,
            healthy="falls with the length, whatever the window",
            example=_TABLE + ", window 0.5 to 2: 0.299",
            see=("seq_bounds", "seq_sum_k1", "kept_sequence_share"),
        ),
    ]
    accepted_geo: Annotated[
        Number,
        Doc(
            "Share of the sequences of a length that a window on the geometric mean of ratios is "
            "expected to keep: a switch on the mean KL, that long sequences pass all or not at "
            "all.",
            unit="share",
            formula="P(" + _GEO + "); as accepted_seq with T times the logs of the bounds",
            direction=LOG_RATIO,
            healthy="1/2 where the KL per token is at the edge of the window",
            example=_TABLE + ", window 0.999 to 1.001: 0.421",
            see=("geo_bounds", "seq_mean_k1"),
        ),
    ]


class HeldOutBin(Part, frozen=True, kw_only=True):
    """A held-out bin compares expected and observed numbers at lengths outside the fit."""

    label: Annotated[str, Doc("Range of lengths of a held-out bin.")]
    num_sequences: Annotated[
        int, Doc("Number of sequences of a held-out bin of lengths.", unit="sequences")
    ]
    mean_length: Annotated[
        Number, Doc("Mean length of the sequences of a held-out bin.", unit="tokens")
    ]
    expected_geo: Annotated[
        Number,
        Doc(
            "Acceptance by the geometric window in a bin of lengths, " + _HELD_OUT,
            unit="share",
            formula="mean of accepted_geo over the lengths of the bin",
            healthy="within the interval of seen_geo",
            see=("seen_geo", "holds"),
        ),
    ]
    seen_geo: Annotated[
        MetricValue,
        Doc(
            "Share of the sequences of a held-out bin that the geometric window keeps.",
            unit="share",
            formula="mean of 1(" + _GEO + ")",
            direction=LOG_RATIO,
            healthy="expected_geo within its interval",
            see=("expected_geo", "holds"),
        ),
    ]
    expected_seq: Annotated[
        Number,
        Doc(
            "Acceptance by the window of sequences in a bin of lengths, " + _HELD_OUT,
            unit="share",
            formula="mean of accepted_seq over the lengths of the bin",
            healthy="within the interval of seen_seq",
            see=("seen_seq", "holds"),
        ),
    ]
    seen_seq: Annotated[
        MetricValue,
        Doc(
            "Share of the sequences of a held-out bin that the window of sequences keeps.",
            unit="share",
            formula="mean of 1(" + _SEQ + ")",
            direction=LOG_RATIO,
            healthy="expected_seq within its interval",
            see=("expected_seq", "holds"),
        ),
    ]
    expected_std: Annotated[
        Number,
        Doc(
            "Standard deviation of sum log_ratio in a bin of lengths, " + _HELD_OUT,
            unit="nats",
            formula="sqrt(2 k T + (k T)^2 (e^(heterogeneity^2) - 1))",
            healthy="within the interval of seen_std",
            example="kl_token 0.0005, 1,000 tokens, heterogeneity 0: 1",
            see=("seen_std", "heterogeneity"),
        ),
    ]
    seen_std: Annotated[
        MetricValue,
        Doc(
            "Standard deviation of sum log_ratio over the sequences of a held-out bin.",
            unit="nats",
            formula="sd of sum log_ratio about its expected mean",
            healthy="expected_std within its interval",
            see=("expected_std", "holds"),
        ),
    ]


class Forecast(Part, frozen=True, kw_only=True):
    """A forecast says what happens to longer responses, by the distribution of single tokens.

    Tokens of the behavior policy make sum log_ratio a martingale, so that over T tokens of KL k it
    is nearly normal with mean -k T and variance 2 k T (central limit theorem of martingales);
    k is lognormal over sequences.
    """

    kl_token: Annotated[
        Number,
        Doc(
            "KL per token that the forecast uses: that by variance, which is the surer one, or the "
            "larger one where both estimates differ beyond chance.",
            unit="nats per token",
            formula="max(kl_token_by_mean, kl_token_by_variance) or kl_token_by_variance",
            direction="KL(behavior || target)",
            healthy="as k3_kl: ideal 0",
            example=_TABLE + ": ess_seq 0.135",
            see=("k3_kl", "kl_token_by_mean", "kl_token_by_variance"),
        ),
    ]
    kl_token_by_mean: Annotated[
        Number,
        Doc(
            "KL per token as the mean of the log-ratio gives it; may be below 0 by noise.",
            unit="nats per token",
            formula="-sum log_ratio / sum of lengths",
            direction=LOG_RATIO,
            example="sums of log_ratio -0.3 and -0.1 over 200 and 200 tokens: 0.001",
            see=("k1_kl", "kl_token_by_variance"),
        ),
    ]
    kl_token_by_variance: Annotated[
        Number,
        Doc(
            "KL per token as the spread of the sums gives it, the surer estimate: tokens of the "
            "behavior policy have both alike.",
            unit="nats per token",
            formula="half the variance of sum log_ratio, per token",
            direction="the same for log_ratio and -log_ratio",
            example="sums of 1,000 tokens with standard deviation 1: 0.0005",
            see=("kl_token_by_mean", "kappa"),
        ),
    ]
    heterogeneity: Annotated[
        Number,
        Doc(
            "How unequal sequences are in their KL per token: the standard deviation of its log.",
            unit="none",
            formula="sd of ln k over sequences, k lognormal",
            healthy="ideal 0; the larger, the longer a part of the sequences stays useful, and the "
            "earlier another part is lost",
            example="0.7: two thirds of the sequences within a factor of 2 of the typical one",
            see=("kl_token",),
        ),
    ]
    seq_bounds: Annotated[
        list[Number],
        Doc(
            "The window on the product of ratios that the forecast is made for.",
            unit="ratio",
            formula=_SEQ,
            example="0.5 to 2",
            see=("accepted_seq",),
            entries=2,
        ),
    ]
    geo_bounds: Annotated[
        list[Number],
        Doc(
            "The window on the geometric mean of ratios that the forecast is made for.",
            unit="ratio",
            formula=_GEO,
            example="0.999 to 1.001",
            see=("accepted_geo",),
            entries=2,
        ),
    ]
    points: Annotated[
        list[ForecastPoint],
        Doc(
            "What the forecast expects at each of a few response lengths, up to the longest "
            "response where `holds` is null.",
            see=("accepted_seq", "accepted_geo"),
        ),
    ]
    held_out: Annotated[
        list[HeldOutBin],
        Doc(
            "Bins of the longer half of the sequences, with what the fit to the shorter half "
            "expects of them.",
            see=("holds",),
        ),
    ]
    holds: Annotated[
        bool | None,
        Doc(
            "Whether the observed numbers of the held-out bins of longer sequences lie where the "
            "distribution of the shorter ones predicts them; null where there are too few to tell.",
            healthy="true; where false the forecast fails on this table, and the page does not "
            "draw it",
            see=("expected_seq", "seen_seq"),
        ),
    ]
    about: Annotated[str, Doc("How the forecast is made and how far it can be believed.")]


class SweepResult(Shown, frozen=True, kw_only=True):
    """The result of `rcdiag sweep` compares estimators on one pair of policies."""

    kind: KindName = "sweep"
    format_version: FormatVersion = FORMAT_VERSION
    provenance: Annotated[dict[str, Anything], replace(PROVENANCE, keys=SweepProvenance)]
    behavior: Behavior
    target: Target
    num_sequences: NumSequences
    num_tokens: NumTokens
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
    findings: Findings = field(default_factory=list)
    diagnosis: DiagnosisOfTable = None

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
        about = f"{self.behavior} -> {self.target}, {size(self)}: {advice.answer}{choice}"
        return Summary(
            about, ("rank", "candidate", "efficiency", "95% interval"), rows, "candidates"
        )
