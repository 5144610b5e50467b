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
    """A number with its 95% interval and level; None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None
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
    mismatch: dict[str, MetricValue]
    corrections: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    worst_tokens: list[dict[str, Any]] = field(default_factory=list)


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
        name: {**step, "mismatch": _metrics(step["mismatch"])}
        for name, step in document["steps"].items()
    }
    read = {
        "mismatch": _metrics(document["mismatch"]),
        "steps": steps,
        "findings": [Finding(**each) for each in document["findings"]],
        "worst_tokens": [
            {name: _number(value) for name, value in token.items()}
            for token in document["worst_tokens"]
        ],
    }
    return ScoreResult(**{**document, **read})


def _metrics(values: dict[str, dict]) -> dict[str, MetricValue]:
    return {
        name: MetricValue(**{key: _number(each) for key, each in value.items()})
        for name, value in values.items()
    }


def _number(value: Any) -> Any:
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


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
