"""Gauges: a number with its interval, on a bar with the bands of its guide."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rcdiag.formats import between, effective, measured, number, percentage, plural
from rcdiag.pages.blocks import Gauge
from rcdiag.pages.score.words import is_lowered
from rcdiag.results import MetricValue
from rcdiag.results.base import LEVELS
from rcdiag.results.guide import Guide
from rcdiag.statistics.metrics import METRICS
from rcdiag.statistics.metrics.expected import lowered_ess_guide

SAMPLER = "Did the recorded policy sample?"
DECADES = 1.5  # of a logarithmic bar, beyond the bounds on both sides


class Scale(Struct, frozen=True):
    """The bar of a gauge: the edges of its bands, their levels, and what the bar is linear in."""

    edges: Sequence[float]
    levels: Sequence[str]
    linear_in: Callable[[float], float] = lambda value: value

    def place(self, value: float) -> float:
        """Return the position of a number, as a fraction of the bar."""
        start, end = map(self.linear_in, (self.edges[0], self.edges[-1]))
        return min(max((self.linear_in(value) - start) / (end - start), 0.0), 1.0)

    @property
    def bands(self) -> list[tuple[float, float, str]]:
        """Start, end and level of each band."""
        places = [self.place(edge) for edge in self.edges]
        return list(zip(places, places[1:], self.levels, strict=False))

    def at_most(self, worst: str) -> Scale:
        """Return the bar with no band worse than a level."""
        milder = [min(level, worst, key=LEVELS.index) for level in self.levels]
        return replace(self, levels=milder)


def gauges(mismatch: Mapping[str, MetricValue], num_sequences: int) -> list[Gauge]:
    """Return gauges of KL, outliers, effective sequences, and whether the policy sampled."""
    made = _headline_gauges(
        mismatch, num_sequences, kappa_is_precise=_is_precise(mismatch["kappa"])
    )
    return [gauge for gauge in made if gauge is not None]


def gauges_of_two(
    before: tuple[Mapping[str, MetricValue], int], after: tuple[Mapping[str, MetricValue], int]
) -> list[tuple[Gauge | None, Gauge | None]]:
    """Return the same gauges for two dumps, each pair on one scale; None for a missing number.

    A dump is given as its mismatch and its number of sequences.
    """
    is_precise = all(_is_precise(mismatch["kappa"]) for mismatch, _ in (before, after) if mismatch)
    one, two = (
        _headline_gauges(mismatch, count, kappa_is_precise=is_precise) if mismatch else [None] * 4
        for mismatch, count in (before, after)
    )
    return [pair for pair in zip(one, two, strict=True) if pair != (None, None)]


def _headline_gauges(
    mismatch: Mapping[str, MetricValue], num_sequences: int, *, kappa_is_precise: bool
) -> list[Gauge | None]:
    """Return the gauges; the mean ratio replaces kappa if kappa is too imprecise."""
    by_kappa, by_mean = "kappa; 1 if it sampled", "standard errors of the mean ratio from 1"
    sampled = "kappa" if kappa_is_precise else "ratio_mean_z"
    outliers = mismatch["ratio_outside_2"]
    return [
        _gauge("k3_kl", "KL, sampler to trainer", mismatch["k3_kl"], unit="nats per token"),
        _gauge(
            "ratio_outside_2",
            "Tokens beyond a factor of 2",
            outliers,
            percentage,
            unit="of the tokens",
        ),
        _effective(mismatch["ess_seq"], num_sequences),
        _gauge(sampled, SAMPLER, mismatch[sampled], unit=by_kappa if kappa_is_precise else by_mean),
    ]


def _effective(value: MetricValue, num_sequences: int) -> Gauge | None:
    guide = METRICS["ess_seq"].guide
    if guide is not None and value.expected is not None:
        guide = lowered_ess_guide(guide, value.expected)
    return _gauge(
        "ess_seq",
        "Effective sequences",
        value,
        lambda share: effective(share * num_sequences),
        unit=f"of {plural(num_sequences, 'sequence')}",
        of="weights of whole sequences",
        guide=guide,
        least=1.0 / max(num_sequences, 1),  # the effective number of sequences is at least 1
    )


def _is_precise(kappa: MetricValue) -> bool:
    """Tell whether kappa is precise enough to say if the policy sampled the tokens."""
    return kappa.level not in (None, "unknown")


def _gauge(
    name: str,
    title: str,
    value: MetricValue,
    written: Callable[[float], str] | None = None,
    *,
    unit: str,
    of: str = "",
    guide: Guide | None = None,
    least: float = -math.inf,
) -> Gauge | None:
    """Make the gauge of a metric from its guide; None if the metric has no value.

    `written` formats the number in the unit that is shown. Bounds below `least`, the smallest
    possible value, are not shown.
    """
    if value.value is None or not math.isfinite(value.value):
        return None
    guide = METRICS[name].guide if guide is None else guide
    scale = None if guide is None else _scale(guide)
    if scale is not None and is_lowered(name, value):
        scale = scale.at_most(value.level or "")
    bounds = "" if guide is None else guide.limits(written or number, least)
    shown, interval = measured(value)
    if written is not None:
        low, high = (None if end is None else written(end) for end in (value.low, value.high))
        shown, interval = written(value.value), between(low, high)
    return Gauge(
        name=name,
        title=title,
        value=shown,
        unit=unit,
        about="; ".join(filter(None, (of, interval and f"95% interval {interval}", bounds))),
        level=value.level or "",
        source="" if guide is None else guide.source,
        bands=() if scale is None else scale.bands,
        at=_placed(scale, value.value),
        low=_placed(scale, value.low),
        high=_placed(scale, value.high),
    )


def _placed(scale: Scale | None, value: float | None) -> float | None:
    return None if scale is None or value is None or math.isnan(value) else scale.place(value)


def _scale(guide: Guide) -> Scale:
    """Return the bar for a guide: a distance either way, a share of 1, or logarithmic."""
    if guide.around is not None:
        reach = 2.0 * guide.error if guide.error < 1.5 else 1.5 * guide.error
        distances = (-reach, -guide.error, -guide.warning, guide.warning, guide.error, reach)
        return Scale(
            [guide.around + distance for distance in distances],
            ("error", "warning", "ok", "warning", "error"),
        )
    # With very long rows any share of effective sequences is normal, so both bounds are 0.
    if guide.error < guide.warning or guide.warning == 0.0:
        return Scale((0.0, guide.error, guide.warning, 1.0), ("error", "warning", "ok"))
    beyond = 10.0**DECADES
    return Scale(
        (guide.warning / beyond, guide.warning, guide.error, guide.error * beyond),
        ("ok", "warning", "error"),
        lambda value: math.log10(value) if value > 0 else -math.inf,
    )
