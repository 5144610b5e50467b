"""The order of policies: who is nearest to the sampler, and which step to the trainer adds what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rcdiag.diagnosis.guides import judged_share
from rcdiag.diagnosis.triangulation import at_floor
from rcdiag.results import Ladder, MetricValue, NoiseFloor, Rung
from rcdiag.statistics.moments import Moments, k2, mean
from rcdiag.statistics.ratios import Array


def behind_the_best(moments: Moments) -> dict[str, MetricValue]:
    """Mean log-prob of the best policy less each policy's, paired by token, nats per token.

    Whatever policy s sampled, E_s[log p - log q] = KL(s || q) - KL(s || p): of several policies the
    one with the highest mean log-prob is nearest to s, and the difference says by how much.
    Source: the logarithmic score is strictly proper, Gneiting and Raftery 2007, Strictly Proper
    Scoring Rules, Prediction, and Estimation, section 3.
    """
    totals = {name: float(moments.difference(name).sum()) for name in moments.policies}
    best = max(totals, key=lambda name: totals[name])
    with np.errstate(invalid="ignore"):  # of infinite sums no difference is known
        return {
            name: mean(moments.difference(best) - moments.difference(name), moments.tokens)
            for name in moments.policies
        }


def is_nearest(behind: MetricValue) -> bool:
    """Whether its distance from the best may be 0; without an interval only the best itself."""
    if behind.low is None:
        return behind.value == 0.0
    return behind.low <= 0.0


def ladder(moments: Moments, order: Sequence[str], floor: NoiseFloor | None) -> Ladder:
    """Every step's part in the mismatch between both ends.

    With d the log-ratio between both ends and e_i that of a step, d = sum e_i, so
    E[d^2] / 2 = sum E[e_i d] / 2 exactly. A part is below 0 where a step undoes what others did.
    """
    if len(order) < 2:
        return Ladder(policies=list(order), whole=MetricValue(value=None), rungs=[])
    rungs = [_rung(moments, order, index, floor) for index in range(1, len(order))]
    return Ladder(policies=list(order), whole=k2(moments, order[0], order[-1]), rungs=rungs)


def _rung(moments: Moments, order: Sequence[str], index: int, floor: NoiseFloor | None) -> Rung:
    start, end, first, last = order[index - 1], order[index], order[0], order[-1]

    def with_whole(name: str) -> Array:
        """Sums over clusters of log-prob difference x log-ratio of both ends; [clusters]."""
        return moments.product(name, last) - moments.product(name, first)

    part = 0.5 * (with_whole(end) - with_whole(start))
    share = mean(part, 0.5 * moments.squares(first, last))
    apart = k2(moments, start, end)
    return Rung(
        start=start,
        end=end,
        contribution=mean(part, moments.tokens),
        share=share if len(order) == 2 else judged_share(share),  # the only step is the whole
        k2=apart,
        log_ratio_mean=mean(moments.difference(end) - moments.difference(start), moments.tokens),
        at_floor=at_floor(apart, floor),
    )
