"""What `rcdiag sweep` found: a table per estimator family, and what to take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rcdiag.results.base import ADDED, FORMAT_VERSION, Finding, MetricValue


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRow:
    """One setting of an estimator family on the whole table as one batch; honest numbers."""

    bounds: dict[str, float]  # lower, upper; of pairs rs_lower, rs_upper, is_upper
    kept_tokens: int
    kept_sequences: int
    kept_groups: int  # with at least two kept sequences, of those that have two
    kept_token_share: MetricValue
    kept_sequence_share: MetricValue
    ess_token: float | None  # of applied weights, rejected tokens with weight 0
    ess_seq: MetricValue
    ess_trainer: float | None  # rollout_is_eff_sample_size as the newest verl logs it
    mean_weight: MetricValue  # of all tokens, rejected ones with weight 0
    lost_mass: MetricValue  # E[ratio 1(rejected)] / E[ratio], at the level of the rejection
    truncation_loss: MetricValue  # E[(ratio - C)+] / E[ratio], at the level of the weights
    variance: float | None  # variance over sequences of the mean applied weight
    bias: float | None  # E|ratio - weight| over whole sequences given E[ratio] = 1, from 0 to 2
    bias_bound: float | None  # E|ratio - weight| / E[ratio]; of weights by sequence alone
    reward_shift: MetricValue  # mean reward of kept sequences less that of all
    advantage_shift: MetricValue  # the same of advantages
    kept_by_length: list[float]  # share of tokens kept, by quartile of the sequence length
    keep_length_correlation: float | None
    clamped_share: float  # of tokens and sequences beyond the trainer's safety bound


@dataclass(frozen=True, kw_only=True, slots=True)
class Configurations:
    """What a trainer's configuration says for every setting of a family, its common text once."""

    templates: list[str]  # YAML with the character U+0001 in place of every number
    entries: list[str]  # a row's template, counted from 0, and its numbers: "0 0.5 2.0"; or ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepFamily:
    """An estimator family over its settings."""

    title: str
    about: str
    level: str  # token, sequence or geometric: of what the bounds hold
    axis: str  # the bound that the rows are ordered by
    rows: list[SweepRow]
    # Trainer -> configurations of all rows; empty in documents of older versions of rcdiag.
    configurations: dict[str, Configurations] = field(default_factory=dict, metadata=ADDED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """An estimator with its setting, as the recommendation judged it."""

    name: str
    family: str
    bounds: dict[str, float]
    efficiency: MetricValue  # scale-free, in [0, 1]; see `method`
    refused: list[str]  # constraints that it breaks, in words
    rank: int | None  # among those not refused, from 1
    indistinguishable: bool  # from the first, within one standard error


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """What to take, why, and what else was looked at."""

    # "correct", "do-not-correct", "fix-the-cause", "cannot-judge"
    answer: str
    choice: str | None  # name of a candidate
    indistinguishable: list[str]  # candidates within one standard error of the best
    reasons: list[str]
    method: str
    candidates: list[Candidate]
    # Trainer -> YAML of the choice, or a comment that says why there is none; empty where there is
    # no choice, and in documents of older versions of rcdiag.
    configurations: dict[str, str] = field(default_factory=dict, metadata=ADDED)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastPoint:
    """Acceptance and effective sample size expected at one response length."""

    length: int
    ess_seq: float
    accepted_seq: float
    accepted_geo: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutBin:
    """A bin of lengths that the law was not fitted on: expected and seen."""

    label: str
    sequences: int
    length: float  # mean
    expected_geo: float
    seen_geo: MetricValue
    expected_seq: float
    seen_seq: MetricValue
    expected_std: float  # of the sum of log-ratios, nats
    seen_std: MetricValue


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What happens to longer responses, by the law of single tokens (theory.md 4.1, 4.2)."""

    # Nats, what the forecast uses: the larger of both where they differ beyond chance, else that by
    # variance, which is surer.
    kl_token: float
    kl_token_by_mean: float  # - mean log_ratio
    kl_token_by_variance: float  # half the variance of sums, per token
    heterogeneity: float  # standard deviation of the log of a sequence's KL per token
    seq_bounds: list[float]  # ratios
    geo_bounds: list[float]
    points: list[ForecastPoint]
    held_out: list[HeldOutBin]
    holds: bool | None  # whether what was seen lies where it was expected; None: too few rows
    about: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepResult:
    """What `rcdiag sweep` found on one pair of policies."""

    kind: str = "sweep"
    format_version: int = FORMAT_VERSION
    provenance: dict[str, Any]
    behavior: str
    target: str
    num_sequences: int
    num_tokens: int
    num_groups: int  # prompt groups of at least two sequences
    num_clusters: int
    length_quartiles: list[float]  # the three cuts
    families: dict[str, SweepFamily]
    recommendation: Recommendation
    forecast: Forecast
    findings: list[Finding] = field(default_factory=list)
