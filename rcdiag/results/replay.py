"""What `rcdiag replay` found: the step that each preset would have taken, and its health."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rcdiag.results.base import FORMAT_VERSION, Finding, MetricValue


@dataclass(frozen=True, kw_only=True, slots=True)
class Coefficients:
    """d loss / d current log-prob of each token, in numbers."""

    norm: float
    sum: float
    abs_sum: float
    nonzero: int
    largest: float  # by size


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Who gets the gradient: shares of the summed |coefficient|."""

    by_length: list[float]  # by quarter of the sequence length, shortest first
    tokens_by_length: list[float]  # what an even split over tokens would give
    positive_advantage: float
    negative_advantage: float
    top_tokens: float  # the 1% of tokens with the largest
    top_sequences: float  # the 1% of sequences (at least one) with the largest
    sequences: list[float]  # of each sequence, the largest first, at most 100
    histogram: dict[str, list[float]]  # log10 |coefficient|: edges, counts


@dataclass(frozen=True, kw_only=True, slots=True)
class Denominator:
    """What the loss is a mean over: how many are counted, kept, and there."""

    which: str  # kept, all, constant
    unit: str  # tokens, sequences, nothing (a sum)
    used: float
    kept: float
    all: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One rule of health: its number, its level and whose it is."""

    name: str
    value: float | None
    level: str  # ok, warning, error
    said: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The worst of its rules; "cannot judge" where what would decide is not there."""

    verdict: str  # ok, warning, error, cannot judge
    rules: list[Rule]
    missing: list[str]  # what could not be judged, and what it needs


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientReport:
    """The gradient of a preset against the reference."""

    norm: float
    norm_by_layer: dict[str, float]
    cosine: MetricValue  # with the reference, by products of different prompt groups; unbiased
    cosine_whole: float | None  # of both whole gradients: noise that they share makes it larger
    norm_ratio: float | None  # of both whole gradients
    norm_ratio_unbiased: MetricValue  # by products of different prompt groups
    bias: MetricValue  # |E[G - R]|^2 / |E[R]|^2, debiased
    variance: float | None  # trace of the covariance of the mean, over |E[G]|^2
    signal_to_noise: float | None
    sequence_norms: list[float]  # of each sequence, the largest first, at most 100
    top_share: float | None  # of squared norms in the top 1% of sequences
    skew: float | None  # norm of the uncorrected step's skew over the norm of this gradient


@dataclass(frozen=True, kw_only=True, slots=True)
class AfterStep:
    """The policy after the step, on the same batch."""

    learning_rate: float
    step_norm: float
    kl_old_new: MetricValue  # KL(old || new) by k3, nats per token
    kl_rollout_new: MetricValue
    log_prob_change_positive: float | None  # mean change where the advantage is above 0, nats
    log_prob_change_negative: float | None
    entropy_before: float | None
    entropy_after: float | None
    perplexity_before: float
    perplexity_after: float
    beyond_clip: float  # share of tokens whose ratio new/old is outside the clip range
    mismatch_growth: float | None  # k3(rollout, new) / k3(rollout, old)
    reward_before: MetricValue | None
    reward_after: MetricValue | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitReport:
    """The batch as one optimizer step and as several mini-batches, from the same start."""

    minibatches: int
    kl_between: MetricValue  # KL(one step || several), nats per token
    kl_whole: MetricValue  # KL(old || one step)
    kl_split: MetricValue  # KL(old || several)


@dataclass(frozen=True, kw_only=True, slots=True)
class PresetReplay:
    """One preset on one batch."""

    mode: str  # decoupled, bypass or naive
    loss_type: str
    config: dict[str, Any]
    loss: float | None
    undefined: str | None  # why there is no loss
    metrics: dict[str, float]  # as the trainer logs them
    coefficients: Coefficients
    shares: Shares | None
    denominator: Denominator
    kept_tokens: int
    kept_sequences: int
    gradient: GradientReport | None
    after_step: AfterStep | None
    split: SplitReport | None
    health: Health
    scatter: list[list[float]] = field(default_factory=list)  # some tokens: what is drawn
    # Of kept tokens: log10 of the weight in the loss, edges and counts; None without weights.
    weights: dict[str, list[float]] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Factor:
    """One of the two factors of the ratio, or their product."""

    behavior: str
    target: str
    k3_kl: MetricValue
    ess_seq: MetricValue
    log_ratio_abs_max: float | None
    log_ratio_histogram: dict[str, list[float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayStep:
    """One step of a replay over several."""

    step: int | None
    presets: dict[str, PresetReplay]
    num_sequences: int
    num_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    """What `rcdiag replay` found."""

    kind: str = "replay"
    format_version: int = FORMAT_VERSION
    provenance: dict[str, Any]
    trainer: str
    rollout: str
    old: str
    current: str
    loss: str
    aggregation: str
    advantage: str  # where the advantages come from
    clip_low: float
    clip_high: float
    step: int | None
    num_sequences: int
    num_tokens: int
    num_groups: int
    empty_sequences: int
    factors: dict[str, Factor]  # mismatch: rollout -> old; staleness: old -> current; product
    presets: dict[str, PresetReplay]
    model: dict[str, Any] | None = None  # how the step was computed
    steps: list[ReplayStep] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
