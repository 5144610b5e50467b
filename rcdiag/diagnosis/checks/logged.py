"""Checks of a trainer's metrics log against the numbers that rcdiag computes."""

from __future__ import annotations

from collections.abc import Iterator

from rcdiag.diagnosis.checks.check import CheckInput, Observation, check
from rcdiag.diagnosis.thresholds import SHOWN
from rcdiag.errors import setting
from rcdiag.formats import listed, plural
from rcdiag.results import LogComparison

EXAMPLE = "rcdiag score rollouts.parquet --trainer-config config.yaml --logged metrics.jsonl"


def _comparison(given: CheckInput) -> LogComparison | None:
    comparison: LogComparison | None = given.result.logged
    return comparison if comparison is not None and comparison.keys else None


def _beside(comparison: LogComparison) -> str:
    """Say what the log is compared with."""
    preset = f"preset {comparison.preset}" if comparison.preset else "the mismatch"
    return f"{comparison.file} and {preset}"


def _of_the_correction(given: CheckInput) -> set[str]:
    """Return the trainer's keys that have other numbers under other presets, as weights have."""
    presets = [one.metrics for one in given.result.corrections.values()]
    keys = {key for metrics in presets for key in metrics}
    return {key for key in keys if len({of[key] for of in presets if key in of}) > 1}


@check(
    severity="warning",
    stages=("score",),
    asks="Does the trainer's log have the numbers that rcdiag computes from the dump?",
    says="The trainer's log has other numbers than those that rcdiag computes from the dump. "
    "float32, another version or preset of the trainer, micro-batches, a sign, means over "
    "tokens or sequences, and rejection were tried and do not explain the difference. Where "
    "only numbers of the correction differ, its settings are others. Otherwise the dump is not "
    "what the trainer saw: other rows, another mask, other log-probs, or another step.",
    fix="check that dump and log are of the same run and step, that all rows of the batch were "
    f"dumped, and that {setting('trainer')} and its settings are those of the run",
    example=EXAMPLE,
    see=("theirs", "ours", "logged-agrees"),
)
def logged_differs(given: CheckInput) -> Iterator[Observation]:
    comparison = _comparison(given)
    if comparison is None or not comparison.unexplained:
        return
    count, keys = len(comparison.unexplained), len(comparison.keys)
    names = list(dict.fromkeys(one.key for one in comparison.unexplained))
    of_correction = _of_the_correction(given)
    settings = all(any(f"/{name}".endswith(f"/{key}") for key in of_correction) for name in names)
    yield Observation(
        message=f"{_beside(comparison)}: {count} of {plural(keys, 'number')} differ without a "
        f"known reason: {listed(names, SHOWN)}",
        evidence={"keys": names, "numbers": count, "compared": keys},
        fix=f"give the settings of the run's correction: {setting('trainer_config')}"
        if settings
        else None,
    )


@check(
    severity="note",
    stages=("score",),
    asks="Does rcdiag compute the numbers that the trainer logged?",
    says="The trainer's log and rcdiag agree, or their differences are explained: the dump is "
    "what the trainer saw.",
    fix="nothing to do",
    example=EXAMPLE,
    see=("theirs", "ours", "logged-differs"),
)
def logged_agrees(given: CheckInput) -> Iterator[Observation]:
    comparison = _comparison(given)
    if comparison is None or comparison.unexplained:
        return
    agree = sum(one.agrees for one in comparison.keys)
    reasons = list(dict.fromkeys(one.explained_by for one in comparison.keys if one.explained_by))
    rest = f"; the others are explained: {', '.join(reasons)}" if reasons else ""
    yield Observation(
        message=f"{_beside(comparison)}: {agree} of {len(comparison.keys)} numbers agree{rest}",
        evidence={"agree": agree, "compared": len(comparison.keys), "reasons": reasons},
    )


LOGGED_CHECKS = (logged_differs, logged_agrees)
