"""Faults that were passed over: few tokens, lags without growth, no end."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.diagnosis.case import Case
from tests.diagnosis.tables import Law, drifted, judged, made, noisy, plain, with_values


@pytest.mark.parametrize(
    ("size", "slug"), [(0.01, "engine-noise"), (1.0, "forwards-differ")], ids=["small", "large"]
)
def test_few_tokens_have_a_cause_by_size_and_an_open_verdict(size: float, slug: str) -> None:
    diagnosis = judged(made(plain, noisy(size), rows=4, length=30))
    assert diagnosis.verdict == "inconclusive"
    assert [cause.slug for cause in diagnosis.causes] == [slug]
    assert diagnosis.summary.startswith("120 sampled tokens with log-probs of both sides are too")
    assert not diagnosis.causes[0].actions
    assert diagnosis.next[0].text.startswith("take more rows")


def test_a_policy_that_is_certain_everywhere_has_no_placeholders() -> None:
    case = made(plain, noisy(0.01), rows=128, length=60, ends=True, sharpness=4.0)

    def rounded(values: np.ndarray) -> np.ndarray:
        return np.where(values > -1e-3, 0.0, values)

    both = with_values(with_values(case, "rollout", rounded), "old", rounded)
    assert "zero-placeholder" not in [cause.slug for cause in judged(both).causes]


@pytest.mark.parametrize(
    ("lags", "slug"), [((1, 2), "stale-weights"), ((0, 1), "weights-differ")], ids=str
)
def test_weights_that_all_rows_have_late_are_stale_at_any_lag(
    lags: tuple[int, int], slug: str
) -> None:
    """Versions may count from another origin: by one, the rows of lag 1 or 0 may be current."""
    lag = np.array(lags)[np.arange(256) % 2]
    step = np.full(256, 20)
    case = made(drifted(0.1), noisy(0.01), rows=256, step=step, policy_version=step - lag)
    diagnosis = judged(case)
    assert [cause.slug for cause in diagnosis.causes] == [slug]
    if slug == "stale-weights":
        assert "1 to 2 updates behind in every row" in diagnosis.summary


@pytest.mark.parametrize("law", [plain, drifted(0.3)], ids=["rounding", "other weights"])
def test_few_zeros_are_placeholders_whatever_else_differs(law: Law) -> None:
    case = made(law, noisy(0.01), rows=256, length=40)
    unlikely = np.flatnonzero(case.mask & (case.log_probs["old"] < -1.5))

    def lost(values: np.ndarray) -> np.ndarray:
        values[unlikely[:: len(unlikely) // 8]] = 0.0
        return values

    diagnosis = judged(with_values(case, "rollout", lost))
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "zero-placeholder")


def test_a_kept_set_of_nearly_the_same_mass_everywhere_is_one() -> None:
    """All log-ratios are alike, and an id predicts no more than their mean."""
    case = made(plain, noisy(0.005), rows=256, length=40)
    diagnosis = judged(with_values(case, "rollout", lambda values: values - np.log(0.9)))
    assert "truncated-law" in [cause.slug for cause in diagnosis.causes] or (
        "truncated-law" in diagnosis.causes[0].also_possible
    )


def _scaled_noise(scale: np.ndarray, **facts: np.ndarray) -> Case:
    """Make rows of 60 tokens whose log-ratios have the rms `scale` [rows, 60] x (1 - p), nats."""
    case = made(plain, plain, rows=len(scale), **facts)
    noise = np.random.default_rng(5).standard_normal(len(case.mask)) * scale.ravel()
    noise *= np.expm1(case.log_probs["rollout"])
    return case.with_log_probs("old", case.log_probs["rollout"] + noise - noise**2 / 2)


def test_noise_that_grows_along_the_responses_is_no_rounding() -> None:
    """An honest mismatch grows with 1 - p, never with the position alone."""
    even, growing = np.full((128, 60), 0.045), np.tile(np.linspace(0.0, 0.08, 60), (128, 1))
    assert judged(_scaled_noise(even)).causes[0].slug == "engine-noise"
    diagnosis = judged(_scaled_noise(growing))
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("correctable", "forwards-differ")
    assert "log-ratios change along the response" in diagnosis.summary


def test_noise_that_grows_over_the_steps_is_no_rounding() -> None:
    step = np.arange(240) // 12
    diagnosis = judged(_scaled_noise(np.outer(0.002 + 0.003 * step, np.ones(60)), step=step))
    assert diagnosis.causes[0].slug != "engine-noise"
    assert "grow" in diagnosis.summary
