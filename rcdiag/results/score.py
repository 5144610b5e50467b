"""What `rcdiag score` found on one pair of policies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rcdiag.results.base import FORMAT_VERSION, Finding, MetricValue, Profile


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrectionResult:
    """One correction on one batch: what the trainer logs, and beside it what is so."""

    trainer: str
    config: dict[str, Any]  # in the trainer's own settings
    kept_tokens: int  # after rejection
    kept_sequences: int  # with at least one kept token
    weight_sum: float | None  # of all unmasked tokens, before batch normalisation; None without
    metrics: dict[str, float]  # exactly the keys that the trainer logs
    honest: dict[str, Any]  # unclamped, per valid sequence, in float64
    # token, sequence, geometric -> log-ratios at which something happens at that level
    log_bounds: dict[str, list[float]] = field(default_factory=dict)
    level: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenProfile:
    """The mismatch of one token id."""

    token_id: int
    tokens: int
    log_ratio_mean: MetricValue
    log_ratio_rms: float
    share_of_squares: float
    share_of_tokens: float
    text: str | None = None  # with --include-text


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceTokens:
    """A sequence with its tokens, cut after the first few hundred."""

    row: int
    sample_id: str | int | None
    step: int | None
    reward: float | None
    length: int  # unmasked tokens
    log_ratio_sum: float
    positions: list[int]  # of unmasked tokens in the response
    token_ids: list[int]
    log_ratio: list[float]
    texts: list[str] | None = None  # with --include-text


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """One training step: a batch of the trainer."""

    num_sequences: int
    num_tokens: int
    mismatch: dict[str, MetricValue]
    corrections: dict[str, CorrectionResult]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreResult:
    """What `rcdiag score` found on one pair of policies."""

    kind: str = "score"
    format_version: int = FORMAT_VERSION
    provenance: dict[str, Any]
    behavior: str
    target: str
    num_sequences: int
    num_tokens: int
    empty_sequences: int  # without an unmasked token; left out of `mismatch`
    policies: dict[str, Any]  # how each policy was scored, where the table says so
    num_clusters: int  # prompt groups, or else sequences: what intervals are made from
    mismatch: dict[str, MetricValue]
    corrections: dict[str, CorrectionResult] = field(default_factory=dict)
    steps: dict[str, StepResult] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    worst_tokens: list[dict[str, Any]] = field(default_factory=list)
    profiles: dict[str, Profile] = field(default_factory=dict)
    worst_token_ids: list[TokenProfile] = field(default_factory=list)
    worst_sequences: list[SequenceTokens] = field(default_factory=list)
