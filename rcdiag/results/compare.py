"""What `rcdiag compare` found on all pairs of policies of a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rcdiag.results.base import FORMAT_VERSION, Finding, MetricValue, Profile


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicySummary:
    """One policy, and how near it is to what really sampled the tokens."""

    about: str  # engine and precision, as far as the table says
    role: str  # sampler, engine, trainer, recorded or repeat
    log_prob_mean: MetricValue  # nats per token
    behind: MetricValue  # mean log-prob of the best less this one's, paired, nats per token
    nearest: bool  # its interval of `behind` reaches 0
    provenance: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairResult:
    """One ordered pair: the target seen from the behavior policy."""

    behavior: str
    target: str
    mismatch: dict[str, MetricValue]
    at_floor: bool | None  # no further apart than two runs of one policy; None: floor not known


@dataclass(frozen=True, kw_only=True, slots=True)
class PairFigure:
    """Of an unordered pair: what its figures are drawn from."""

    edges: list[float]  # of log-probs, nats
    cells: list[list[int]]  # bin of the first, bin of the second, tokens
    by_probability: Profile


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """A step of the ladder: what one difference between two policies adds."""

    start: str
    end: str
    contribution: MetricValue  # E[step x whole] / 2, nats per token; all rungs add up to the whole
    share: MetricValue  # of the whole
    k2: MetricValue  # E[step^2] / 2, nats per token: how far apart both are
    log_ratio_mean: MetricValue  # nats per token
    at_floor: bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """The way from the sampler to the trainer in steps."""

    policies: list[str]
    whole: MetricValue  # E[log_ratio^2] / 2 between both ends, nats per token
    rungs: list[Rung]


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseFloor:
    """Two runs of one policy with other batch compositions."""

    policy: str
    repeat: str
    k2: MetricValue
    log_ratio_abs_max: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Triangulation:
    """Who stands apart of recorded, re-scored and trainer log-probs."""

    sampler: str
    engine: str
    trainer: str
    k2: dict[str, MetricValue]  # "a~b" -> nats per token
    verdict: str  # slug of its finding
    odd_one_out: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinReport:
    """How several tables became one."""

    tables: list[str]
    rows: list[int]
    joined: int
    missing: dict[str, int]  # table -> rows of others that it lacks
    tokens_differ: int
    named: list[str]  # the first few samples left out, and why


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareResult:
    """What `rcdiag compare` found."""

    kind: str = "compare"
    format_version: int = FORMAT_VERSION
    provenance: dict[str, Any]
    policies: dict[str, PolicySummary]
    num_sequences: int
    num_tokens: int
    num_clusters: int
    empty_sequences: int
    pairs: dict[str, PairResult]  # "a->b"
    nearest: list[str]  # policies that no interval tells from the nearest to the sampler
    ladder: Ladder
    triangulation: Triangulation | None
    noise_floor: NoiseFloor | None
    joined: JoinReport | None
    findings: list[Finding] = field(default_factory=list)
    figures: dict[str, PairFigure] = field(default_factory=dict)  # "a->b", each pair once
