"""These figures show the mismatch along an axis: by probability, position, length, ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.shapes import ends, heights
from rcdiag.pages.style import FIRST, INK, SECOND
from rcdiag.results import MetricValue, ScoreResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def profile(name: str, *companions: str, line: str = "-") -> Callable[[ScoreResult, Figure], None]:
    """Make a drawing of two panels over the same bins: size of the log-ratio, and its mean.

    `companions` are profiles with the same bins, whose means are drawn beside it.
    """

    def draw(result: ScoreResult, figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        bins = result.profiles[name].bins
        labels = [bin_.label for bin_ in bins]
        at = np.arange(len(labels))
        size = [bin_.log_ratio_rms for bin_ in bins]
        style: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1.2, "capsize": 2}
        upper.errorbar(at, heights(size), _distances(size), color=FIRST, linestyle=line, **style)
        upper.margins(x=0.3 / len(labels))
        upper.set_ylim(bottom=0)
        # Ticks that come and go with the height would need room that the layout did not leave.
        upper.locator_params(axis="y", nbins=5)
        lower.locator_params(axis="y", nbins=4)
        upper.set_ylabel("rms log-ratio (nats)")
        lower.axhline(0.0, color=INK, linewidth=0.8)
        dashes = (line, "--", ":")
        for index, binned_by in enumerate((name, *companions)):
            shared = [bin_ for bin_ in result.profiles[binned_by].bins if bin_.label in labels]
            means = [bin_.log_ratio_mean for bin_ in shared]
            where = [labels.index(bin_.label) for bin_ in shared]
            errors = _distances(means) if index == 0 else None
            look = {**style, "linestyle": dashes[index], "color": SECOND if index == 0 else INK}
            label = binned_by.removesuffix("_probability").replace("mean", "geometric mean")
            lower.errorbar(where, heights(means), errors, label=label, **look)
        if companions:
            place: dict[str, Any] = {"loc": "outside lower center", "ncols": 1 + len(companions)}
            figure.legend(fontsize=8, frameon=False, title="binned by the probability of", **place)
        lower.set_ylabel("mean log-ratio")
        lower.set_xticks(at, labels, rotation=40, ha="right", rotation_mode="anchor")
        about = result.profiles[name]
        unit = f" ({about.unit})" if about.unit else ""
        lower.set_xlabel("probability" if companions else f"{about.title}{unit}")

    return draw


def _distances(values: list[MetricValue]) -> np.ndarray:
    """Return distances from the values to the ends of their intervals, [2, bins], 0 without."""
    middle = heights(values)
    with np.errstate(invalid="ignore"):  # infinities without an interval
        distances = np.stack([middle - ends(values)[0], ends(values)[1] - middle])
    return np.nan_to_num(distances, nan=0.0)


PANELS = (
    "The upper panel shows the rms of the log-ratio in each bin, the lower panel its mean, both "
    "with 95% intervals by cluster."
)


def _has_bins(result: ScoreResult, name: str) -> bool:
    return name in result.profiles and bool(result.profiles[name].bins)


def _figure(
    name: str, title: str, profile_name: str, *companions: str, says: str = PANELS, line: str = "-"
) -> FigureSpec:
    """Make the figure of a profile; sentences on what the profile tells come with the result."""
    return FigureSpec(
        name=name,
        kind="score",
        title=title,
        says=says,
        draw=profile(profile_name, *companions, line=line),
        applies=lambda result: _has_bins(result, profile_name),
        adds=lambda result: result.profiles[profile_name].about,
    )


FIGURES = (
    _figure(
        "mismatch-by-probability",
        "Mismatch by probability",
        "mean_probability",
        "behavior_probability",
        "target_probability",
        says=f"{PANELS} Rounding errors grow towards rare tokens. Binned by the probability under "
        "one policy alone, the mean of rare tokens bends one way, and under the other policy the "
        "other way: that is selection. The bins of the solid line are those of the geometric mean "
        "of both probabilities.",
    ),
    _figure("mismatch-by-position", "Mismatch by position", "position"),
    _figure("mismatch-by-length", "Mismatch by length of the sequence", "length"),
    _figure("mismatch-by-entropy", "Mismatch by entropy", "entropy"),
    _figure("mismatch-by-turn", "Mismatch by turn", "turn"),
    _figure("mismatch-by-reward", "Mismatch by reward", "reward", line="none"),
)
