"""Evidence on an update in which one number is given and all others are harmless."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from rcdiag.corrections.correction import Correction
from rcdiag.diagnosis.correction_health import CorrectionEvidence
from rcdiag.diagnosis.update_health import Evidence
from rcdiag.results import AfterStep, Factor, GradientReport, MetricValue, Shares
from rcdiag.usecases.replay.factors import FACTORS

_K3 = {"staleness_k3": "staleness"}


@dataclass(frozen=True, slots=True)
class Given:
    """The number that one rule reads."""

    rule: str = ""
    value: float = 0.0

    def of(self, rule: str, harmless: float) -> float:
        return self.value if rule == self.rule else harmless


def evidence(given: Given, **more: Any) -> Evidence:
    """Make evidence on the update without a correction; every rule of `health` applies."""
    fields = {
        "mode": "naive",
        "metrics": {"actor/pg_clipfrac": given.of("clip_fraction", 0.0)},
        "factors": {name: _factor(given, name) for name in FACTORS},
        "correction": correction_evidence(given),
        "size": given.of("update_size", 1.0),
        "shares": _only(
            Shares, top_sequences=given.of("top_sequences", 0.0), top_sequences_uncorrected=0.0
        ),
        "gradient": _only(GradientReport, cosine=MetricValue(value=given.of("cosine", 1.0))),
        "after": _only(
            AfterStep,
            kl_old_new=MetricValue(value=given.of("kl_old_new", 0.0)),
            mismatch_growth=given.of("mismatch_growth", 1.0),
        ),
    }
    return _only(Evidence, **(fields | more))


def correction_evidence(given: Given, **more: Any) -> CorrectionEvidence:
    """Make evidence on a batch without a correction."""
    names = ("ess_token_applied", "ess_seq_applied")
    lost = ("truncation_loss", "lost_target_mass_token", "lost_target_mass_seq")
    fields = {
        "correction": Correction(),
        "numbers": {name: given.of(name, 1.0) for name in names}
        | {name: given.of(name, 0.0) for name in lost},
        "kept_tokens": 10,
        "kept_sequence_share": given.of("kept_share", 1.0),
        "mean_weight": given.of("mean_weight", 1.0),
        "mismatch": {
            "k3_kl": MetricValue(value=given.of("mismatch_k3", 0.0)),
            "ess_seq": MetricValue(value=given.of("uncorrected_ess", 1.0)),
        },
    }
    return CorrectionEvidence(**(fields | more))


def _factor(given: Given, name: str) -> Factor:
    k3 = given.value if _K3.get(given.rule) == name else 0.0
    return _only(Factor, k3_kl=MetricValue(value=k3), ess_seq=MetricValue(value=1.0))


def _only(part: Any, **given: Any) -> Any:
    """Make an object with some fields given and None in all others."""
    return part(**dict.fromkeys(inspect.signature(part).parameters) | given)
