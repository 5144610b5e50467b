"""Causes that a training log can show, each by the numbers of a window of steps.

A log has only means over tokens. These show whether the recorded distribution sampled (then
E[ratio] = 1 + k3 - k1 is 1), whether the two columns belong to the same tokens, whether a column
holds log-probs at all, which of the two changed, and what grows with the steps. Where they do not
determine a single cause, an umbrella is named, or several causes.

Each file has the causes that rest on the same kind of number; to add one, write a function of a
window in its file and name it in `LOG_CAUSES`, or one of the whole run in `CAUSES_OF_RUNS`.
"""

from __future__ import annotations

from collections.abc import Callable

from rcdiag.diagnosis.causes.cause import Suspicion
from rcdiag.diagnosis.logged.causes.alignment import other_tokens, unrelated
from rcdiag.diagnosis.logged.causes.correction import costs_much, other_weight, rejects_some
from rcdiag.diagnosis.logged.causes.mean_ratio import (
    kept_set,
    not_the_sampler,
    ratio_of_no_sample,
    weights_above_1,
)
from rcdiag.diagnosis.logged.causes.not_finite import not_finite_in, overflow_in
from rcdiag.diagnosis.logged.causes.size import (
    beyond_by_far,
    beyond_float32,
    few_tokens,
    identical,
    noise,
    other_forward,
)
from rcdiag.diagnosis.logged.causes.surprisals import (
    impossible_surprisals,
    other_base,
    other_temperature,
    worse_than_uniform_in,
)
from rcdiag.diagnosis.logged.run import LoggedRun
from rcdiag.diagnosis.logged.window import StepWindow

Weigh = Callable[[StepWindow], Suspicion | None]
# Causes that some steps of a run show by themselves; each is returned with these steps.
CAUSES_OF_RUNS: tuple[Callable[[LoggedRun], tuple[StepWindow, Suspicion] | None], ...] = (
    not_finite_in,
    worse_than_uniform_in,
    overflow_in,
)
# In the order in which they are tried: the first one that a window shows is named.
LOG_CAUSES: tuple[Weigh, ...] = (
    impossible_surprisals,
    identical,
    other_base,
    other_tokens,
    not_the_sampler,
    weights_above_1,
    kept_set,
    other_temperature,
    unrelated,
    few_tokens,
    other_forward,
    other_weight,
    costs_much,
    rejects_some,
    beyond_by_far,
    beyond_float32,
    ratio_of_no_sample,
    noise,
)


def found_in(window: StepWindow) -> Suspicion | None:
    """Return the first cause that a window of steps shows; None if it has no mismatch metric."""
    return next((found for weigh in LOG_CAUSES if (found := weigh(window)) is not None), None)
