"""Results as plain data, and their JSON: numbers and words, nothing that needs torch to read."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

from rcdiag.errors import RcdiagError

# 1: the first.
FORMAT_VERSION = 1

SEVERITIES = ("note", "warning", "error")


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricValue:
    """A number with its 95% interval and level; None where there is none.

    A value of None is not defined on this data; NaN says that a NaN log-prob touches it.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    level: str | None = None


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
class Finding:
    """Something that the reader should know, and what to do about it."""

    slug: str
    severity: str  # of SEVERITIES
    message: str
    fix: str
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileBin:
    """The tokens of one bin, and how far apart both policies are on them."""

    label: str
    tokens: int
    log_ratio_mean: MetricValue
    log_ratio_rms: MetricValue
    k3_kl: MetricValue
    share_of_squares: float  # of the sum of log_ratio^2 over all bins


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Mismatch along one axis; only bins with tokens are listed."""

    title: str
    unit: str
    about: str
    bins: list[ProfileBin]


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
    steps: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    worst_tokens: list[dict[str, Any]] = field(default_factory=list)
    profiles: dict[str, Profile] = field(default_factory=dict)
    worst_token_ids: list[TokenProfile] = field(default_factory=list)
    worst_sequences: list[SequenceTokens] = field(default_factory=list)


def to_json(result: ScoreResult) -> str:
    """The result document; NaN and infinities as strings, so that any JSON reader takes it."""
    return json.dumps(_plain(dataclasses.asdict(result)), indent=1, allow_nan=False) + "\n"


def from_json(text: str, source: str) -> ScoreResult:
    """Read a result document back."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise RcdiagError(
            f"{source}: not JSON ({error})", "give a file made by --result"
        ) from error
    if not isinstance(document, dict) or "format_version" not in document:
        raise RcdiagError(f"{source}: not a result of rcdiag", "give a file made by --result")
    if document["format_version"] != FORMAT_VERSION or document.get("kind") != "score":
        what = f"kind {document.get('kind')!r}, format_version {document['format_version']}"
        raise RcdiagError(f"{source}: cannot read {what}", "render it with the rcdiag that made it")
    try:
        return _read(document)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RcdiagError(
            f"{source}: not a whole result ({type(error).__name__}: {error})",
            hint="it was cut or edited; make it again with --result",
        ) from error


def _read(document: dict[str, Any]) -> ScoreResult:
    steps = {
        name: {
            **step,
            "mismatch": _metrics(step["mismatch"]),
            "corrections": _corrections(step["corrections"]),
        }
        for name, step in document["steps"].items()
    }
    read = {
        "mismatch": _metrics(document["mismatch"]),
        "corrections": _corrections(document["corrections"]),
        "steps": steps,
        "findings": [Finding(**each) for each in document["findings"]],
        "profiles": {
            name: Profile(**{**each, "bins": [_bin(bin_) for bin_ in each["bins"]]})
            for name, each in document["profiles"].items()
        },
        "worst_token_ids": [
            TokenProfile(**{**each, "log_ratio_mean": _metric(each["log_ratio_mean"])})
            for each in document["worst_token_ids"]
        ],
        "worst_sequences": [
            SequenceTokens(
                **{
                    **_numbers(each),
                    "log_ratio": [_number(value) for value in each["log_ratio"]],
                }
            )
            for each in document["worst_sequences"]
        ],
        "worst_tokens": [_numbers(token) for token in document["worst_tokens"]],
    }
    return ScoreResult(**{**document, **read})


def _metrics(values: dict[str, dict]) -> dict[str, MetricValue]:
    return {name: _metric(value) for name, value in values.items()}


def _corrections(values: dict[str, dict]) -> dict[str, CorrectionResult]:
    return {
        name: CorrectionResult(
            **{
                **_numbers(each),
                "metrics": _numbers(each["metrics"]),
                "honest": _numbers(each["honest"]),
            }
        )
        for name, each in values.items()
    }


def _metric(value: dict[str, Any]) -> MetricValue:
    return MetricValue(**_numbers(value))


def _bin(value: dict[str, Any]) -> ProfileBin:
    metrics = ("log_ratio_mean", "log_ratio_rms", "k3_kl")
    return ProfileBin(**{**_numbers(value), **{name: _metric(value[name]) for name in metrics}})


# Texts of tokens and names of samples are never numbers, whatever they say.
_TEXTS = ("text", "texts", "sample_id", "label")


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value if name in _TEXTS else _number(value) for name, value in values.items()}


def _number(value: Any) -> Any:
    special = isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity")
    return float(value) if special else value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def worst_severity(findings: list[Finding]) -> str | None:
    """The highest severity there is, None without findings."""
    ranks = [SEVERITIES.index(finding.severity) for finding in findings]
    return SEVERITIES[max(ranks)] if ranks else None
