"""How much hangs on few tokens or sequences."""

from __future__ import annotations

import numpy as np

from rcdiag.statistics.intervals import NONE, Interval
from rcdiag.statistics.metrics.metric import PROPOSAL, Averaged, Guide, Metric, Whole
from rcdiag.statistics.metrics.overlap import ess
from rcdiag.statistics.pareto import k_hat_error, reliable_below
from rcdiag.statistics.ratios import OUTSIDE, outside_name
from rcdiag.statistics.suite import Suite

TOP = 0.001
HARMLESS_ESS = 0.9
NEGLIGIBLE_K3 = 1e-3
NORMAL_REACH = 1.96


def _k_hat(fitted: tuple[float, int]) -> tuple[float, Interval]:
    """The shape with its 95% interval by the asymptotic error of the fit."""
    shape, count = fitted
    if np.isnan(shape):
        return shape, NONE
    reach = NORMAL_REACH * k_hat_error(shape, count)
    return shape, (shape - reach, shape + reach)


def _reliable(suite: Suite, level: str) -> float:
    table = suite.state.table
    return reliable_below(len(table) if level == "seq" else int(table.lengths.sum()))


def _k_hat_guide(level: str) -> Guide:
    return Guide(
        lambda s: min(0.5, _reliable(s, level)),
        lambda s: _reliable(s, level),
        "Vehtari et al. 2024: below 0.5 finite variance, unreliable from min(1 - 1/log10 S, 0.7); "
        "judged where ESS is below 0.9",
        # k-hat is blind to scale: however heavy, a tail of ratios near 1 moves no weighted mean.
        applies=lambda s: bool(ess(s.point, level)[0] < HARMLESS_ESS),
    )


def _outside(bound: float) -> Metric:
    name = outside_name(bound)
    return Averaged(
        label=f"ratios outside {bound:g}",
        unit="share",
        ideal=0.0,
        about=f"share of tokens whose ratio is above {bound:g} or below 1/{bound:g}",
        guide=Guide(1e-3, 1e-2, f"{PROPOSAL}; ten times as many are common in mixtures of experts")
        if bound == 2.0
        else None,
        headline=bound == 2.0,
        zero_is_certain=False,
        formula=lambda t: t.per_token(name),
    )


TAIL: dict[str, Metric] = {
    "khat_token": Whole(
        label="Pareto k-hat of tokens",
        ideal=None,
        about="tail index of token ratios: 1/k moments exist. The interval takes the tail's tokens "
        "as independent",
        guide=_k_hat_guide("token"),
        of_suite=lambda s: _k_hat(s.k_hat_token),
    ),
    "khat_seq": Whole(
        label="Pareto k-hat of sequences",
        ideal=None,
        about="tail index of sequence ratios: 1/k moments exist. The interval takes the tail's "
        "sequences as independent",
        guide=_k_hat_guide("seq"),
        headline=True,
        of_suite=lambda s: _k_hat(s.k_hat_seq),
    ),
    **{f"ratio_outside_{bound:g}": _outside(bound) for bound in OUTSIDE},
    "top_share": Whole(
        label="share of the top 0.1% of tokens",
        unit="share",
        ideal=None,
        about="part of sum log_ratio^2 that the 0.1% largest |log_ratio| make up; an extreme has "
        "no interval",
        # Where most tokens are certain few can differ at all, and those few make up a large share
        # of next to nothing: the shipped rollouts, of a healthy run, have 0.37.
        guide=Guide(
            0.2,
            0.5,
            f"{PROPOSAL}; judged where k3_kl is 0.001 or more",
            applies=lambda s: bool(s.point.per_token("k3")[0] >= NEGLIGIBLE_K3),
        ),
        of_suite=lambda s: (s.ordered.top_share_of_squares(TOP), NONE),
    ),
}
