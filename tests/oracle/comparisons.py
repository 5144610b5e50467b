"""Comparison of rcdiag's numbers with those of verl's own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rcdiag.results import CorrectionResult
from rcdiag.trainers.plan import Plan
from tests.corrections.builders import Padded, results_of
from tests.oracle.verl import Answer, ask

Close = Callable[[str, float, float], bool]


def within_a_millionth(name: str, expected: float, result: float) -> bool:
    """Compare to a relative 1e-6; for differences, relative to the size of their terms.

    A standard deviation is sqrt(E[x^2] - E[x]^2): its square is as good as those.
    """
    if np.isnan(expected) or np.isnan(result):
        return bool(np.isnan(expected) and np.isnan(result))
    if name.endswith("_std") and np.isfinite(expected):
        expected, result = expected**2, result**2
    return (
        expected == result
        or abs(expected - result) <= 1e-6 * max(abs(expected), abs(result)) + 1e-13
    )


def differences(
    plan: Plan, batch: Padded, cuts: int, dtype: str = "float64", close: Close = within_a_millionth
) -> list[str]:
    """Return the differences between rcdiag and verl, one line each."""
    outcome = results_of(plan, batch, cuts)
    lines = []
    for name, result in outcome.items():
        try:
            answer = ask(plan.trainer.name, dict(plan.configs[name]), batch, dtype)
        except ZeroDivisionError:
            lines += [f"{name}: {line}" for line in _where_verl_stops(result)]
            continue
        lines += [f"{name}: {line}" for line in _between(answer, result, batch, close)]
    return lines


def _where_verl_stops(result: CorrectionResult) -> list[str]:
    """verl divides by zero if all IcePop weights are 0; rcdiag's ESS is then NaN."""
    size = result.metrics["rollout_corr/rollout_is_eff_sample_size"]
    if result.weight_sum == 0.0 and np.isnan(size):
        return []
    return [f"verl divides by zero, ours: weights {result.weight_sum}, ESS {size}"]


def _between(answer: Answer, result: CorrectionResult, batch: Padded, close: Close) -> list[str]:
    lines = [f"only one has {key}" for key in set(answer.metrics) ^ set(result.metrics)]
    pairs: dict[str, tuple[Any, Any]] = {
        name: (value, result.metrics[name])
        for name, value in answer.metrics.items()
        if name in result.metrics
    }
    pairs["kept_tokens"] = int(answer.kept.sum()), result.kept_tokens
    pairs["kept_sequences"] = int((answer.kept.sum(axis=1) > 0).sum()), result.kept_sequences
    normalizer = answer.metrics.get("rollout_corr/rollout_is_batch_norm_factor", 1.0)
    if answer.weights is not None:
        # rcdiag's sum is that before batch normalisation.
        total = float(answer.weights[batch.mask].astype(np.float64).sum()) * normalizer
        pairs["weight_sum"] = total, np.nan if result.weight_sum is None else result.weight_sum
    elif result.weight_sum is not None:
        lines.append(f"no weights at verl's, sum {result.weight_sum} at ours")
    return lines + [
        f"{name}: verl {expected!r}, ours {outcome!r}"
        for name, (expected, outcome) in pairs.items()
        if not close(name, expected, outcome)
    ]
