"""Notes on thresholds outside of the ranges in verl's guide (listed in settings.toml)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rcdiag.corrections.correction import Correction
from rcdiag.results import Finding
from rcdiag.trainers.settings_table import Config
from rcdiag.trainers.toml_words import read_settings

ROUNDING = 1e-9  # bounds on k1 are stored as logs, and converted back here


def outside_of_guide(settings: Config, correction: Correction, package: str) -> list[Finding]:
    """Return a note for each threshold of a correction that is outside of its typical range."""
    findings = []
    for name, of, value in _thresholds(settings, correction):
        words = read_settings(package)[name]
        low, high = words.typical.get(of, (-np.inf, np.inf))
        if low * (1 - ROUNDING) <= value <= high * (1 + ROUNDING):
            continue
        findings.append(
            Finding(
                slug="outside-typical-range",
                severity="note",
                message=f"{name} {value:.6g} for {of} is outside of {low:g} to {high:g}, which "
                f"{words.typical_by} calls typical",
                fix="see what it does on this table: `rcdiag sweep` compares it with others",
                evidence={"setting": name, "value": value, "low": low, "high": high},
            )
        )
    return findings


def _thresholds(settings: Config, correction: Correction) -> Iterator[tuple[str, str, float]]:
    """Yield the thresholds of a correction: setting, what it bounds, upper bound in its unit."""
    weighting, veto = correction.weighting, correction.veto
    if weighting is not None and "rollout_is_threshold" in settings:
        yield "rollout_is_threshold", weighting.level, weighting.upper
    for rejection in correction.rejections if "rollout_rs_threshold" in settings else ():
        is_k1 = rejection.statistic.endswith("_k1")
        upper = float(np.exp(rejection.upper)) if is_k1 else rejection.upper
        yield "rollout_rs_threshold", rejection.statistic, upper
    if veto is not None:
        names = ("rollout_is_veto_threshold", "rollout_token_veto_threshold")
        yield next(name for name in names if name in settings), "veto", veto
