"""The result of `rcdiag score`: the mismatch of two policies, and every correction of it."""

from __future__ import annotations

from typing import Annotated, TypedDict

from msgspec import field

from rcdiag.errors import setting
from rcdiag.formats import measured
from rcdiag.results.base import (
    ESS_SEQ_APPLIED,
    ESS_TOKEN_APPLIED,
    LEVELS,
    LOG_RATIO,
    RATIO,
    TOY,
    TRUNCATION_LOSS,
    Behavior,
    BiasBound,
    Config,
    EmptySequences,
    Histogram,
    KeepLengthCorrelation,
    KeptSequences,
    KeptTokens,
    LoggedMetrics,
    MetricValue,
    NumClusters,
    NumSequences,
    NumTokens,
    Profile,
    RowsLeftOut,
    Target,
    TrainerName,
)
from rcdiag.results.doc import Anything, Doc, Number
from rcdiag.results.logged import LogComparison
from rcdiag.results.parts import Part
from rcdiag.results.routing import Routing
from rcdiag.results.sequences import (
    BinExamples,
    SequenceTokens,
    TokenProfile,
    WorstToken,
)
from rcdiag.results.show import KindName, Measured, Summary

# How means under the behavior policy of a pair are made.
SAMPLED, WEIGHTED, NOT_GIVEN = MEANS = ("sampled", "weighted", "not-given")
_MEANS = (
    "sampled: the behavior policy of the pair is the sampler, so they are plain means. weighted: "
    "another policy sampled, and they are self-normalised means with the weights behavior / "
    "sampler, {what}. not-given: the table does not hold the sampler, or the weights are too "
    "uneven or wrong (an effective sample size below 0.5; below 0.9 with a k-hat of 0.7 or more; "
    "a mean weight that is not 1), and the numbers are null with the level unknown. Null in "
    "results of earlier versions, whose numbers are plain means whoever sampled."
)
TokenMeans = Annotated[
    str | None,
    Doc(
        "How the numbers of a pair are estimated that assume that its behavior policy sampled "
        "the tokens, such as k3_kl. "
        + _MEANS.format(what="token by token, over the prefixes that were sampled"),
        formula="sum(w f) / sum(w) over tokens, w = behavior / sampler probability",
        healthy="sampled or weighted",
        see=("sampler", "k3_kl", "ess_token", "unknown"),
        one_of=MEANS,
        added=True,
    ),
]
SequenceMeans = Annotated[
    str | None,
    Doc(
        "How the numbers of a pair are estimated that assume that its behavior policy sampled "
        "the whole sequences, such as ess_seq. "
        + _MEANS.format(what="multiplied over each sequence"),
        formula="sum(w f) / sum(w) over sequences, w = prod behavior / sampler probability",
        healthy="sampled or weighted",
        see=("sampler", "ess_seq", "khat_seq", "unknown"),
        one_of=MEANS,
        added=True,
    ),
]

WeightSum = Annotated[
    Number | None,
    Doc(
        "Sum of the weights over all unmasked tokens, rejected ones too, before batch "
        "normalisation; null without weights.",
        unit="ratio",
        formula="sum of applied weights over tokens",
        example=TOY + "6.365",
    ),
]


class _CorrectionNumbers(TypedDict):
    """These numbers of a correction count rows with a token and are in float64.

    Ratios have no clamp; weights are those that enter the loss, truncated where a correction
    truncates.
    Sources: Kish 1965, Survey Sampling (effective sample size); Vehtari et al. 2024, Pareto
    smoothed importance sampling (k-hat); bounds on the bias are those for values within [-1, 1].
    """

    ess_token_applied: Annotated[Number | None, ESS_TOKEN_APPLIED]
    ess_seq_applied: Annotated[Number | None, ESS_SEQ_APPLIED]
    lost_target_mass_token: Annotated[
        Number | None,
        Doc(
            "Share of the target policy's probability mass that rejection discards, by token. The "
            "heading `lost` shows the larger of this and the share by sequence.",
            unit="share",
            formula="E[ratio 1(rejected)] / E[ratio] over tokens",
            direction=RATIO,
            healthy="ideal 0",
            example=TOY + "0.7284",
            see=("lost_target_mass_seq",),
            heading="lost",
        ),
    ]
    lost_target_mass_seq: Annotated[
        Number | None,
        Doc(
            "Share of the target policy's probability mass that rejection discards, by sequence: "
            "the share of the sequences of which no token is kept.",
            unit="share",
            formula="E[prod ratio 1(rejected)] / E[prod ratio] over sequences",
            direction=RATIO,
            healthy="ideal 0",
            example=TOY + "0.03917",
        ),
    ]
    truncation_loss: Annotated[Number | None, TRUNCATION_LOSS]
    bias_bound: BiasBound
    unsafe_tokens: Annotated[
        Number | None,
        Doc(
            "Share of tokens whose log-ratio reaches the clamp of trainers, 20 nats.",
            unit="share",
            formula="E[1(|log_ratio| >= 20)] over tokens",
            direction=RATIO,
            healthy="ideal 0",
            example=TOY + "0",
        ),
    ]
    unsafe_sequences: Annotated[
        Number | None,
        Doc(
            "Share of sequences whose summed log-ratio reaches the clamp of trainers, 20 nats.",
            unit="share",
            formula="E[1(|sum log_ratio| >= 20)] over sequences",
            direction=RATIO,
            healthy="ideal 0",
            example=TOY + "0",
        ),
    ]
    keep_length_correlation: KeepLengthCorrelation
    keep_reward_correlation: Annotated[
        Number | None,
        Doc(
            "Whether rejection selects by reward, and so changes the objective; null without "
            "rewards, and where all or nothing is kept everywhere.",
            unit="none",
            formula="Pearson correlation over sequences of kept share and reward",
            healthy="ideal 0",
            example="of two sequences the one with the higher reward is kept: 1",
        ),
    ]
    groups_below_two: Annotated[
        int,
        Doc(
            "Number of prompt groups of two or more sequences that keep fewer than two: a group "
            "baseline has nothing to compare there.",
            unit="groups",
            formula="count of groups with size >= 2 and fewer than 2 kept sequences",
            healthy="ideal 0",
            example=TOY + "0",
        ),
    ]
    denominator_kept: Annotated[
        int,
        Doc(
            "What the loss divides by where rejected tokens are not counted: verl's legacy workers "
            "up to 0.7.1, and its engine workers in decoupled mode with token-mean.",
            unit="tokens",
            formula="count of kept tokens",
            example=TOY + "2",
            see=("denominator_all",),
        ),
    ]
    denominator_all: Annotated[
        int,
        Doc(
            "What the loss divides by where rejected tokens are counted: verl's V1 trainer, bypass "
            "mode, IcePop, mask mode of 0.6.0, and slime. Rejection then shrinks the loss.",
            unit="tokens",
            formula="count of unmasked tokens",
            example=TOY + "5",
            see=("denominator_kept",),
        ),
    ]
    khat: Annotated[
        Number | None,
        Doc(
            "Pareto k-hat of the raw ratios at the level of the weights; null without weights.",
            unit="none",
            formula="khat_token or khat_seq",
            healthy="below 0.5 finite variance; from 0.7 on unreliable (Vehtari et al. 2024, "
            "Pareto smoothed importance sampling)",
            see=("khat_token", "khat_seq"),
            heading="k-hat",
        ),
    ]


class CorrectionNumbers(_CorrectionNumbers, total=False):
    """All numbers of a correction; three exist only where verl's code and documents differ."""

    accepted_ratios: Annotated[
        dict[str, dict[str, list[Number]]],
        Doc(
            "Range of ratios that each k1 option keeps, by verl's code and by verl's documents; "
            "the key exists only where they differ.",
            unit="ratio",
            formula="code [1/upper, 1/lower], documents [lower, upper]",
            direction=RATIO,
            example=TOY + "token_k1 code [0.625, 1.667], documents [0.6, 1.6]",
            see=("mirrored-bounds", "token_k1"),
        ),
    ]
    kept_tokens_by_documents: Annotated[
        int,
        Doc(
            "Number of tokens that the bounds keep as verl's documents define them; the key exists "
            "only where that differs from the code.",
            unit="tokens",
            formula="count of tokens with lower <= ratio <= upper",
            direction=RATIO,
            example=TOY + "3",
            see=("mirrored-bounds",),
        ),
    ]
    kept_sequences_by_documents: Annotated[
        int,
        Doc(
            "Number of sequences that the bounds keep as verl's documents define them; the key "
            "exists only where that differs from the code.",
            unit="sequences",
            formula="count of sequences with a token that would be kept",
            example=TOY + "2",
            see=("mirrored-bounds",),
        ),
    ]


class CorrectionResult(Part, frozen=True, kw_only=True):
    """A correction result shows what a trainer logs of a correction, and its actual numbers."""

    trainer: TrainerName
    config: Config
    kept_tokens: KeptTokens
    kept_sequences: KeptSequences
    weight_sum: WeightSum
    metrics: LoggedMetrics
    actual: Annotated[
        dict[str, Anything],
        Doc(
            "Numbers of a correction beside those that the trainer logs: over sequences with a "
            "token, in float64, with unclamped ratios and weights as they enter the loss.",
            see=("ess_seq_applied", "lost_target_mass_seq", "truncation_loss"),
            keys=CorrectionNumbers,
        ),
    ]
    log_bounds: Annotated[
        dict[str, list[Number]],
        Doc(
            "Log-ratios at which a correction begins to act, by scope (token, sequence, "
            "geometric); figures mark them.",
            unit="nats",
            formula="log of each bound; -upper and -lower for k1 bounds",
            example=TOY + "sequence [0.6931], token [-0.47, 0.5108]",
        ),
    ] = field(default_factory=dict)
    level: Annotated[
        str | None,
        Doc(
            "The worst level of the numbers that judge a correction; error where no token is kept, "
            "unknown where one of them is missing, for example because weights are NaN; null where "
            "the PPO ratio alone corrects, which `replay` judges.",
            see=(*LEVELS, "actual"),
            one_of=LEVELS,
        ),
    ] = None
    in_float32: Annotated[
        dict[str, Anything] | None,
        Doc(
            "What the correction keeps when computed in float32, as trainers do: kept tokens, kept "
            "sequences and the weight sum; null where float64 decides the same for every token.",
            see=("float32-decides", "kept_tokens", "weight_sum"),
            sparse=True,
        ),
    ] = None

    @property
    def lost_mass(self) -> float | None:
        """Share of the target's probability mass that is lost: the larger one by its two levels."""
        shares = (self.actual[f"lost_target_mass_{level}"] for level in ("token", "seq"))
        return max((share for share in shares if share is not None), default=None)

    def mean_weight(self, num_tokens: int) -> float | None:
        """Return the mean weight of a batch's tokens before rejection; None without weights."""
        return None if self.weight_sum is None or not num_tokens else self.weight_sum / num_tokens


Corrections = Annotated[
    dict[str, CorrectionResult],
    Doc("Every correction on the batch, by the name of its preset.", see=("config", "actual")),
]
Mismatch = Annotated[
    dict[str, MetricValue],
    Doc(
        "All metrics of a pair of policies, by name.",
        see=("k3_kl", "ess_seq", "kappa"),
        heading="metric",
    ),
]


class JointCounts(TypedDict):
    """Joint counts are a 2D histogram of tokens by their log-probs under both policies."""

    edges: Annotated[list[Number], Doc("Edges of the bins of log-probs.", unit="nats")]
    cells: Annotated[
        list[list[int]],
        Doc(
            "Non-empty bins: bin of the behavior policy's log-prob, bin of the target's, number of "
            "tokens."
        ),
    ]


class Path(TypedDict):
    """A path shows how the log-ratio of one sequence adds up along its tokens."""

    token_counts: Annotated[
        list[int], Doc("Numbers of tokens after which the sum of a path is stored.", unit="tokens")
    ]
    sums: Annotated[
        list[Number],
        Doc(
            "Sum of the log-ratios of a sequence up to each of these tokens.",
            unit="nats",
            direction=LOG_RATIO,
            as_many_as="token_counts",
        ),
    ]


class _ScoreFigures(TypedDict):
    """These counts and sums of a score are in the results of all versions."""

    log_ratio_histogram: Annotated[
        Histogram, Doc("Histogram of the log-ratios of tokens.", unit="nats", direction=LOG_RATIO)
    ]
    log_probs: Annotated[
        JointCounts, Doc("Tokens by their log-probs under both policies.", unit="nats")
    ]
    paths: Annotated[list[Path], Doc("Summed log-ratios along a few sequences, chosen by a hash.")]
    sequence_log_ratio: Annotated[
        list[int],
        Doc(
            "Sequences by their summed log-ratio, in the bins of `log_ratio_histogram`.",
            unit="sequences",
            as_many_as="log_ratio_histogram.counts",
        ),
    ]
    geometric_log_ratio: Annotated[
        list[int],
        Doc(
            "Sequences by their mean log-ratio, in the bins of `log_ratio_histogram`.",
            unit="sequences",
            as_many_as="log_ratio_histogram.counts",
        ),
    ]


class ScoreFigures(_ScoreFigures, total=False):
    """The figures of a score are drawn from these counts and sums."""

    concentration: Annotated[
        list[list[Number]],
        Doc(
            "How few tokens make up the KL: share of the tokens, those with the largest k3 first, "
            "and their share of the sum of k3 over all tokens, to 1% of it.",
            unit="share",
            formula="sum of k3 over the largest share / sum over all tokens",
            healthy="a straight line where all tokens differ equally",
            see=("k3", "top_share"),
        ),
    ]


class StepResult(Part, frozen=True, kw_only=True):
    """A step result holds the mismatch and the corrections of one training step's batch."""

    num_sequences: NumSequences
    num_tokens: NumTokens
    mismatch: Mismatch
    corrections: Corrections
    rows_left_out: RowsLeftOut = 0


# Levels in the order in which a reader of a summary wants to see them.
METRIC_LEVELS = ("error", "warning", "unknown", "ok")


class ScoreResult(Measured, frozen=True, kw_only=True):
    """The result of `rcdiag score` describes one pair of policies and every correction."""

    kind: KindName = "score"
    behavior: Behavior
    target: Target
    empty_sequences: EmptySequences
    scoring: Annotated[
        dict[str, Anything],
        Doc("How each policy was scored, as far as the table's metadata says."),
    ]
    num_clusters: NumClusters
    mismatch: Mismatch
    corrections: Corrections = field(default_factory=dict)
    steps: Annotated[
        dict[str, StepResult],
        Doc(
            "Mismatch and corrections of every training step; empty where the table has one step "
            "or none.",
            see=("step",),
        ),
    ] = field(default_factory=dict)
    figures: Annotated[
        dict[str, Anything], Doc("What the figures of a score are drawn from.", keys=ScoreFigures)
    ] = field(default_factory=dict)
    worst_tokens: Annotated[
        list[WorstToken],
        Doc("The tokens with the largest log-ratios by size, at most 20.", see=("log_ratio",)),
    ] = field(default_factory=list)
    profiles: Annotated[
        dict[str, Profile],
        Doc("The mismatch along axes like position and probability, by the name of the axis."),
    ] = field(default_factory=dict)
    worst_token_ids: Annotated[
        list[TokenProfile],
        Doc(
            "The token ids with the largest shares of the mismatch, at most 20, among those seen "
            "20 times or more.",
            see=("share_of_squares",),
        ),
    ] = field(default_factory=list)
    worst_sequences: Annotated[
        list[SequenceTokens],
        Doc(
            "The sequences with the largest summed log-ratios by size, at most 30.",
            see=("log_ratio_sum",),
        ),
    ] = field(default_factory=list)
    named_sequences: Annotated[
        list[SequenceTokens],
        Doc(
            "Sequences that were asked for and are not among those with the largest sums; of each "
            "all tokens are stored, 20,000 at most.",
            example="rcdiag score rollouts.parquet --sequence 1681 --html page.html",
            see=("worst_sequences",),
            added=True,
        ),
    ] = field(default_factory=list)
    drawn_sequences: Annotated[
        list[SequenceTokens],
        Doc(
            "Sequences drawn at random, at most 10, in the order in which they were drawn: as many "
            "as a page has room for beside `worst_sequences`.",
            see=("worst_sequences",),
            added=True,
        ),
    ] = field(default_factory=list)
    examples: Annotated[
        BinExamples | None,
        Doc(
            "Tokens of each bin of the exceedance curve and of the profiles; null in documents of "
            "earlier versions.",
            see=("by_bin", "profiles"),
            sparse=True,
        ),
    ] = None
    rows_left_out: RowsLeftOut = 0
    pair_reason: Annotated[
        str | None,
        Doc(
            "Why these two policies are compared, where policies were scored and neither "
            f"{setting('behavior')} nor {setting('target')} was given; null otherwise.",
            example="rcdiag score rollouts.parquet --model CKPT --policy hf_fp32=hf:float32",
            see=("behavior", "target"),
            added=True,
        ),
    ] = None
    token_means: TokenMeans = None
    sequence_means: SequenceMeans = None
    logged: Annotated[
        LogComparison | None,
        Doc(
            "The trainer's own log compared with our numbers, key by key; null without "
            f"{setting('logged')}.",
            example="rcdiag score rollouts.parquet --logged metrics.jsonl",
            needs="--logged",
            see=("theirs", "ours", "explained_by", "logged-differs"),
            added=True,
        ),
    ] = None

    routing: Annotated[
        Routing | None,
        Doc(
            "How much of the mismatch comes from different experts chosen in a mixture of experts; "
            "null where the table has neither the experts of both policies nor a policy that was "
            "scored with those of the behavior policy.",
            example="rcdiag score moe.parquet --model CKPT --policy r3=hf:float32,experts=rollout",
            see=("rerouted", "removed", "moe-routing"),
            sparse=True,
        ),
    ] = None

    @property
    def readable_sequences(self) -> list[SequenceTokens]:
        """Return all sequences with stored tokens: the worst, the named and the drawn ones."""
        return [*self.worst_sequences, *self.named_sequences, *self.drawn_sequences]

    def _summary(self) -> Summary:
        """Summarise the metrics that have a guide, the worst level first."""
        steps = f", {len(self.steps)} steps" if self.steps else ""
        rows = [
            (name, *measured(value), level)
            for level in METRIC_LEVELS
            for name, value in self.mismatch.items()
            if value.level == level
        ]
        pair = f"{self.behavior} -> {self.target}" if self.target else f"{self.behavior} alone"
        about = f"{pair}, {self.size}{steps}"
        return Summary(about, ("metric", "value", "95% interval", "level"), rows, "metrics")
