"""Figures of the mismatch along an axis: by probability, position, length, ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.pages.charts import Axis, Chart
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.shapes import ends, heights, name_ticks
from rcdiag.pages.style import FIRST, INK
from rcdiag.results import MetricValue, ScoreResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def profile(name: str) -> Callable[[ScoreResult, Figure], None]:
    """Make a drawing of two panels over the same bins: size of the log-ratio, and its share."""

    def draw(result: ScoreResult, figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        about = result.profiles[name]
        at = np.arange(len(about.bins))
        size = [bin_.log_ratio_rms for bin_ in about.bins]
        style: dict[str, Any] = {"marker": "o", "markersize": 4, "linestyle": "none", "capsize": 2}
        upper.errorbar(at, heights(size), _distances(size), color=FIRST, **style)
        upper.margins(x=0.3 / max(len(at), 1))
        upper.set_ylim(bottom=0)
        # A fixed number of ticks: the layout does not leave room for a number that varies with the
        # height.
        upper.locator_params(axis="y", nbins=5)
        lower.locator_params(axis="y", nbins=4)
        upper.set_ylabel("rms log-ratio (nats)")
        tokens = max(sum(bin_.tokens for bin_ in about.bins), 1)
        lower.bar(at, [bin_.share_of_squares for bin_ in about.bins], color=FIRST, width=0.7)
        outline: dict[str, Any] = {"fill": False, "edgecolor": INK, "width": 0.8}
        lower.bar(at, [bin_.tokens / tokens for bin_ in about.bins], **outline)
        lower.set_ylabel("share")
        labels = [bin_.label for bin_ in about.bins]
        name_ticks(lower, labels)
        unit = f" ({about.unit})" if about.unit else ""
        lower.set_xlabel(f"{about.title}{unit}")

    return draw


def _distances(values: list[MetricValue]) -> NDArray[np.float64]:
    """Return distances from the values to the ends of their intervals, [2, bins], 0 without."""
    middle = heights(values)
    with np.errstate(invalid="ignore"):  # infinities without an interval
        distances = np.stack([middle - ends(values)[0], ends(values)[1] - middle])
    lengths: NDArray[np.float64] = np.nan_to_num(distances, nan=0.0)
    return lengths


def profile_chart(name: str) -> Callable[[ScoreResult], Chart]:
    """Make the chart of a profile: typical size in each bin, and the share of the mismatch."""

    def chart(result: ScoreResult) -> Chart:
        about = result.profiles[name]
        tokens = max(sum(bin_.tokens for bin_ in about.bins), 1)
        unit = f" ({about.unit})" if about.unit else ""
        return Chart(
            form="bars",
            columns=(
                "bin",
                "tokens",
                "share of tokens",
                "share of squares",
                *("rms log-ratio", "rms low", "rms high"),
                *("mean log-ratio", "mean low", "mean high"),
                "k3",
            ),
            rows=[
                (
                    bin_.label,
                    bin_.tokens,
                    bin_.tokens / tokens,
                    bin_.share_of_squares,
                    *_with_ends(bin_.log_ratio_rms),
                    *_with_ends(bin_.log_ratio_mean),
                    bin_.k3_kl.value,
                )
                for bin_ in about.bins
            ],
            x=Axis(label=f"{about.title}{unit}"),
            y=Axis(label="share", percent=True, start=0.0),
            options={
                "bar": "share of squares",
                "outline": "share of tokens",
                "dots": ["rms log-ratio", "rms low", "rms high"],
                **({} if result.examples is None else {"opens": "bin", "bins": {"of": name}}),
            },
        )

    return chart


def _with_ends(value: MetricValue) -> tuple[float | None, float | None, float | None]:
    return value.value, value.low, value.high


PANELS = (
    "Dots are the rms of the log-ratio in each bin, with 95% intervals by cluster. Bars are the "
    "bin's share of all squared log-ratios, outlines its share of the tokens: where a bar is above "
    "its outline the mismatch gathers. A click on a bin lists tokens of it."
)


def _has_bins(result: ScoreResult, name: str) -> bool:
    """Tell whether a profile has a bin whose mismatch is a number."""
    bins = result.profiles[name].bins if name in result.profiles else []
    return bool(np.isfinite(heights([bin_.log_ratio_rms for bin_ in bins])).any())


def _figure(name: str, title: str, profile_name: str) -> FigureSpec:
    """Make the figure of a profile; sentences on what the profile tells come with the result."""
    return FigureSpec(
        name=name,
        kind="score",
        title=title,
        says=PANELS,
        draw=profile(profile_name),
        chart=profile_chart(profile_name),
        applies=lambda result: _has_bins(result, profile_name),
        adds=lambda result: result.profiles[profile_name].about,
    )


FIGURES = (
    _figure("mismatch-by-probability", "Mismatch by probability", "mean_probability"),
    _figure("mismatch-by-position", "Mismatch by position", "position"),
    _figure("mismatch-by-length", "Mismatch by length of the sequence", "length"),
    _figure("mismatch-by-entropy", "Mismatch by entropy", "entropy"),
    _figure("mismatch-by-turn", "Mismatch by turn", "turn"),
    _figure("mismatch-by-reward", "Mismatch by reward", "reward"),
    _figure("mismatch-by-training-step", "Mismatch by training step", "step"),
    _figure("mismatch-by-engine", "Mismatch by engine", "engine"),
    _figure("mismatch-by-version", "Mismatch by version of the weights", "policy_version"),
)
