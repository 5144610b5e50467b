"""Steps whose numbers are NaN, infinite, or overflow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rcdiag.diagnosis.case import Counts
from rcdiag.diagnosis.causes.cause import CLEAR, EXACT, GUESS, Suspicion, fact
from rcdiag.diagnosis.logged.causes.found import (
    FEWEST_BEYOND,
    NO_STEPS,
    undecided,
)
from rcdiag.diagnosis.logged.run import LoggedRun, Series
from rcdiag.diagnosis.logged.window import StepWindow
from rcdiag.diagnosis.thresholds import HALF, NEARLY_ALL

# Means of exponentials of log-ratios, which overflow float32 above 88 nats, and those of tokens
# that are infinite wherever E[ratio] is.
EXPONENTIALS = (
    "exp_abs_diff",
    "ppl_ratio",
    "chi2_token",
    "chi2_seq",
    "ratio_mean",
    "weight_mean",
    "k3_max",
)
OF_TOKENS = ("exp_abs_diff", "chi2_token", "ratio_mean")
# Means of log-ratios: where one is finite, so are the log-ratios.
OF_LOG_RATIOS = ("k1", "k2", "abs_diff", "log_ppl_diff")


def not_finite_in(run: LoggedRun) -> tuple[StepWindow, Suspicion] | None:
    """Look for steps with NaN or infinity, over the whole run; return these steps with the cause.

    Means of exponentials that overflow are none: other numbers of their steps are finite.
    """
    bad = _bad_steps(run)
    if not bad:
        return None
    key = max(bad, key=lambda name: len(bad[name]))
    steps = steps_not_finite(run)
    share = len(bad[key]) / len(run.steps)
    where = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    rare = 1.0 - share > NEARLY_ALL  # a batch or a metric that failed once
    shown = f"`{key}` is NaN or infinite in {len(bad[key])} of {len(run.steps)} steps ({where})"
    return StepWindow(run, steps), Suspicion(
        slug="nan-log-probs",
        confidence=GUESS if rare else EXACT if share > HALF else CLEAR,
        verdict="inconclusive" if rare else None,
        message=f"{shown}: a log-prob there is NaN or infinite, or the number overflowed; the "
        "other steps are judged without it."
        if rare
        else f"{shown}: some log-probs are NaN or infinite.",
        evidence=[
            fact(name, "of the steps NaN or infinite", share=round(len(of_key) / len(run.steps), 3))
            for name, of_key in list(bad.items())[:3]
        ],
        also_possible=[],
    )


def steps_not_finite(run: LoggedRun) -> Counts:
    """Return the steps at which a number of the mismatch is NaN, or infinite by no overflow."""
    return np.unique(np.concatenate([NO_STEPS, *_bad_steps(run).values()]))


def _bad_steps(run: LoggedRun) -> dict[str, Counts]:
    """Return the keys that are NaN or infinite at some steps: key -> these steps."""
    bad = {
        one.key: np.setdiff1d(one.steps[~np.isfinite(one.values)], _overflows(run, one))
        for one in run.of_mismatch
    }
    return {key: steps for key, steps in bad.items() if len(steps)}


def _overflows(run: LoggedRun, series: Series) -> Counts:
    """Return the steps at which a mean of exponentials overflows while log-ratios are finite.

    k3 contains the log-ratios, which are finite where it is. It overflows by E[ratio] alone, so not
    where another number that contains E[ratio] is finite.
    """
    name = series.quantity.name
    infinite: Counts = series.steps[np.isposinf(series.values)]
    if name == "k3":
        finite = np.intersect1d(infinite, _finite(run, OF_LOG_RATIOS))
        return np.setdiff1d(finite, _finite(run, OF_TOKENS))
    if name in EXPONENTIALS:
        return np.intersect1d(infinite, _finite(run, (*OF_LOG_RATIOS, "k3")))
    return NO_STEPS


def _finite(run: LoggedRun, names: Sequence[str]) -> Counts:
    """Return the steps at which one of some quantities is finite."""
    several = [one for name in names if (one := run.series.get(name)) is not None]
    finite = [one.steps[np.isfinite(one.values)] for one in several]
    return np.unique(np.concatenate([NO_STEPS, *finite]))


def overflow_in(run: LoggedRun) -> tuple[StepWindow, Suspicion] | None:
    """Look for a mean over tokens that overflows in more than one step; None without one.

    Sums over long responses may overflow by rounding, those of a token do not.
    """
    for name in ("k3", *OF_TOKENS):
        one = run.series.get(name)
        if one is None or len(steps := _overflows(run, one)) < FEWEST_BEYOND:
            continue
        reads = "infinite where log-ratios are finite"
        return StepWindow(run, steps), undecided(
            f"`{one.key}` is infinite in {len(steps)} of {len(run.steps)} steps, from step "
            f"{steps[0]} on, and log-ratios are finite: in each of them a token's ratio "
            "overflows, far beyond rounding.",
            [fact(one.key, reads, share=round(len(steps) / len(run.steps), 3))],
        )
    return None
