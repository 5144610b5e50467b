"""Corrections are written as AReaL's rejection_sampling, in its decoupled loss.

Source: areal 1.0.4, areal/api/cli_args.py, `RejectionSamplingConfig`.
"""

from __future__ import annotations

import numpy as np

from rcdiag.corrections.bounds import Window, weights_of, windows_of
from rcdiag.corrections.correction import Correction, Rejection
from rcdiag.trainers.areal.correction import BLOCK, of_block
from rcdiag.trainers.settings_text import (
    ABOVE_ALL,
    BELOW_ALL,
    Inexpressible,
    Value,
    Written,
    rounded,
)

M2PO = "token_tail_second_moment"
_TESTS = {
    "token": ("token", "ratio", None),
    "geometric": ("sequence", "ratio", "mean"),
    "sequence": ("sequence", "ratio", "sum"),
    "seq_max_ratio": ("sequence", "ratio", "max"),
}
_KLS = ("forward_k1", "forward_k2", "forward_k3")


def rejection_sampling(correction: Correction) -> Written:
    """Write M2PO, and one test with bare ratios beside it, or clipped ratios."""
    if correction.veto is not None or correction.batch_normalize:
        raise Inexpressible("veto and batch normalisation of weights")
    if not correction.weights_applied or correction.loss not in ("ppo_clip", ""):
        raise Inexpressible("weights that are logged only, nor losses on the rollout")
    tests = [one for one in correction.rejections if one.statistic != M2PO]
    written = _policies(correction) | _m2po(correction)
    if correction.weighting is None:
        if tests:
            raise Inexpressible("rejection without weights")
        return written | Written({BLOCK: None})
    if len(tests) > 1:
        raise Inexpressible("two rejections")
    return written | Written({BLOCK: True}) | _block(correction, tests)


def _policies(correction: Correction) -> Written:
    """Write how many policies the loss tells apart; one that stands for two has no log-ratio."""
    one = correction.guard.before_sums and not correction.guard.bound
    if correction.mode == "bypass" and not one and correction.weighting is not None:
        raise Inexpressible("weights beside a PPO ratio against the rollout")
    if correction.mode == "bypass" or one:
        recomputed = correction.mode != "bypass"
        return Written({"use_decoupled_loss": False, "recompute_logprob": recomputed})
    return Written({"use_decoupled_loss": True})


def _m2po(correction: Correction) -> Written:
    for rejection in correction.rejections:
        if rejection.statistic == M2PO:
            return Written({"m2_threshold": float(np.nextafter(rejection.upper, np.inf))})
    return Written()


def _block(correction: Correction, tests: list[Rejection]) -> Written:
    assert correction.weighting is not None
    weights = weights_of(correction.weighting)
    if weights.zeroes:
        raise Inexpressible("weights that are zeroed without rejection")
    if tests:
        if not weights.window.bounds_nothing:
            raise Inexpressible("truncated weights beside a rejection")
        return _mask(tests[0])
    level = {"token": "token", "geometric": "sequence"}.get(weights.level)
    if level is None:
        raise Inexpressible(f"weights of level {weights.level}")
    aggregation = "mean"
    for test in correction.weighting.only_outside:
        aggregation = _TESTS[test.statistic][2] or "mean"
    settings: dict[str, Value] = {
        f"{BLOCK}.level": level,
        f"{BLOCK}.action": "clamp",
        f"{BLOCK}.metric": "ratio",
    }
    if level == "sequence":
        settings[f"{BLOCK}.agg"] = aggregation
    return Written({**settings, **_bounds(weights.window)})


def _mask(test: Rejection) -> Written:
    place, _, statistic = test.statistic.partition("_forward")
    if f"forward{statistic}" in _KLS:
        bounds = of_block(metric=f"kl{statistic}", upper=test.upper, lower=test.lower)
        if place == "token":
            return Written({**of_block(level="token", action="mask"), **bounds})
        reduction = place.removeprefix("seq_")
        return Written({**of_block(level="sequence", action="mask", agg=reduction), **bounds})
    windows = windows_of([Rejection(test.statistic, test.upper, test.lower)])
    if test.statistic not in _TESTS and not windows.keys() <= _TESTS.keys():
        raise Inexpressible(f"rejection by {test.statistic}")
    name = next(iter(windows), test.statistic)
    level, metric, aggregation = _TESTS[name if name in _TESTS else "token"]
    window = windows.get(name, Window(-np.inf, np.inf))
    if test.statistic == "seq_max_ratio":
        window = Window(float(np.log(test.lower)) if test.lower else -np.inf, np.log(test.upper))
    settings = of_block(level=level, action="mask", metric=metric)
    settings |= {} if aggregation is None else of_block(agg=aggregation)
    return Written({**settings, **_bounds(window)})


def _bounds(window: Window) -> dict[str, Value]:
    """Write bounds on ratios; the upper one has to be above 1."""
    lower, upper = np.exp(window.lower), np.exp(window.upper)
    return of_block(
        upper=ABOVE_ALL if np.isinf(upper) else rounded(upper),
        lower=None if window.lower == -np.inf else rounded(lower or BELOW_ALL),
    )
