"""The result of `rcdiag score`: the mismatch of two policies, and every correction of it."""

from __future__ import annotations

from typing import Annotated, TypedDict

from msgspec import field

from rcdiag.errors import setting
from rcdiag.formats import measured
from rcdiag.results.base import (
    LOG_RATIO,
    Behavior,
    EmptySequences,
    Histogram,
    MetricValue,
    NumClusters,
    NumSequences,
    NumTokens,
    Profile,
    RowsLeftOut,
    Target,
)
from rcdiag.results.correction import CorrectionResult
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
