"""Metrics of how much depends on few tokens or sequences."""

from __future__ import annotations

from functools import partial

import numpy as np
from msgspec.structs import replace

from rcdiag.results.guide import PROPOSAL, Guide
from rcdiag.statistics.intervals import NONE, Interval
from rcdiag.statistics.metrics.expected import expected_k_hat_seq, k_hat_guide
from rcdiag.statistics.metrics.metric import (
    BEHAVIOR_SAMPLED,
    BY_FIT,
    NO_INTERVAL,
    RATIOS_OF_EXAMPLE,
    SEQUENCES_SAMPLED,
    SYMMETRIC,
    TAIL,
    Metric,
)
from rcdiag.statistics.pareto import k_hat_error, reliable_below
from rcdiag.statistics.ratios import OUTSIDE, outside_name
from rcdiag.statistics.second_moment import HARMLESS_ESS, ess
from rcdiag.statistics.suite import Suite

TOP = 0.001
NEGLIGIBLE_K3 = 1e-3
NORMAL_REACH = 1.96


def _k_hat(fitted: tuple[float, int]) -> tuple[float, Interval]:
    """Return the Pareto shape with a 95% interval from the asymptotic error of the fit."""
    shape, count = fitted
    if np.isnan(shape):
        return shape, NONE
    reach = NORMAL_REACH * k_hat_error(shape, count)
    return shape, (shape - reach, shape + reach)


_VEHTARI = "Vehtari et al. 2024, JMLR 25(72)"
K_HAT_GUIDE = Guide(
    warning=0.5,
    error=0.7,
    source=f"{_VEHTARI}: below 0.5 finite variance, unreliable from min(1 - 1/log10 S, 0.7) of S "
    "ratios; higher where rounding alone, at the declared precisions, gives such a tail at these "
    "lengths; judged where ESS is below 0.9",
)


def _k_hat_guide(level: str, suite: Suite) -> Guide | None:
    """Return the guide for the number of ratios in a suite; None if ESS is high.

    k-hat does not depend on scale: a heavy tail of ratios near 1 does not move a weighted mean.
    """
    if not ess(suite.point, level)[0] < HARMLESS_ESS:
        return None
    table = suite.state.table
    reliable = reliable_below(len(table) if level == "seq" else int(table.lengths.sum()))
    guide = replace(K_HAT_GUIDE, warning=min(0.5, reliable), error=reliable)
    return k_hat_guide(guide, suite) if level == "seq" else guide


def _k_hat_metric(level: str, what: str, *, headline: bool) -> Metric:
    return Metric(
        name=f"khat_{level}",
        family=TAIL,
        label=f"Pareto k-hat of {what}s",
        says=f"The tail index k of the {what}s' ratios: moments exist up to 1 / k, so that from "
        f"0.5 on a weighted mean has no finite variance. Its interval takes the tail's {what}s as "
        "independent.",
        formula="shape of the generalised Pareto distribution fitted to the largest "
        + ("ratios of tokens" if level == "token" else "products of ratios"),
        ideal=None,
        presupposes=BEHAVIOR_SAMPLED if level == "token" else SEQUENCES_SAMPLED,
        guide=K_HAT_GUIDE,
        guide_for=partial(_k_hat_guide, level),
        expects=expected_k_hat_seq if level == "seq" else None,
        source=f"{_VEHTARI}, 2.2",
        see=(f"ess_{level}",),
        headline=headline,
        from_suite=lambda s: _k_hat(s.k_hat_token if level == "token" else s.k_hat_seq),
        interval=BY_FIT,
    )


def _outside(bound: float, example: str) -> Metric:
    return Metric(
        name=f"ratio_outside_{bound:g}",
        family=TAIL,
        label=f"ratios outside {bound:g}",
        says=f"The share of tokens whose ratio is above {bound:g} or below 1/{bound:g}.",
        formula=f"E[1(|log_ratio| > ln {bound:g})] over tokens",
        unit="share",
        ideal=0.0,
        direction=SYMMETRIC,
        guide=Guide(
            warning=1e-3,
            error=1e-2,
            source=f"{PROPOSAL}; ten times as many are common in mixtures of experts",
        )
        if bound == 2.0
        else None,
        example=RATIOS_OF_EXAMPLE + example,
        headline=bound == 2.0,
        from_totals=lambda t: t.per_token(outside_name(bound)),
        bound=0.0,
        most=1.0,
        counts=outside_name(bound),
    )


TOP_SHARE_GUIDE = Guide(
    warning=0.2, error=0.5, source=f"{PROPOSAL}; judged where k3_kl is 0.001 or more"
)


_SHARES_OUTSIDE = dict(zip(OUTSIDE, ("1", "0.6", "0.4", "0", "0"), strict=True))

TAILS = (
    _k_hat_metric("token", "token", headline=False),
    _k_hat_metric("seq", "sequence", headline=True),
    *(_outside(bound, example) for bound, example in _SHARES_OUTSIDE.items()),
    Metric(
        name="top_share",
        family=TAIL,
        label="share of the top 0.1% of tokens",
        says="The part of the summed squared log-ratios that the 0.1% of tokens with the largest "
        "|log_ratio| make up. An extreme has no interval.",
        formula="sum of log_ratio^2 over the largest 0.1% / sum over all tokens",
        unit="share",
        ideal=None,
        direction=SYMMETRIC,
        guide=TOP_SHARE_GUIDE,
        # If most tokens are certain, only few can differ, and they have a large share of a
        # negligible sum: the shipped rollouts of a healthy run have 0.37.
        guide_for=lambda suite: (
            TOP_SHARE_GUIDE if suite.point.per_token("k3")[0] >= NEGLIGIBLE_K3 else None
        ),
        example=RATIOS_OF_EXAMPLE + "0.5682",
        from_suite=lambda s: (s.ordered.top_share_of_squares(TOP), NONE),
        interval=NO_INTERVAL,
    ),
)
