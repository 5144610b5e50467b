"""Figures of the mismatch along an axis: by probability, position, length, ..."""

from __future__ import annotations

from math import isfinite, nan

from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel
from rcdiag.pages.definitions import FigureSpec
from rcdiag.results import MetricValue, Profile, ScoreResult


def profile_chart(profile: Profile, opens: str = "") -> Chart:
    """Return two panels over the same bins: rms log-ratio, and share of the mismatch.

    `opens` is the name of the profile if a click on a bin lists examples of its tokens.
    """
    tokens = max(sum(bin_.tokens for bin_ in profile.bins), 1)
    unit = f" ({profile.unit})" if profile.unit else ""
    names = [bin_.label for bin_ in profile.bins]
    return Chart(
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
                *with_ends(bin_.log_ratio_rms),
                *with_ends(bin_.log_ratio_mean),
                bin_.k3_kl.value,
            )
            for bin_ in profile.bins
        ],
        panels=[
            Panel(
                x=ChartAxis(scale="names", names=names, hidden=True),
                y=ChartAxis(label="rms log-ratio (nats)", start=0.0),
                marks=[
                    Mark(shape="dot", x="bin", y="rms log-ratio", low="rms low", high="rms high")
                ],
                height=0.5,
            ),
            Panel(
                x=ChartAxis(label=f"{profile.title}{unit}", scale="names", names=names),
                y=ChartAxis(label="share", percent=True, start=0.0),
                marks=[
                    Mark(shape="bar", x="bin", y="share of squares", label="share of squares"),
                    Mark(
                        shape="bar",
                        x="bin",
                        y="share of tokens",
                        label="share of tokens",
                        hollow=True,
                    ),
                ],
                height=0.5,
            ),
        ],
        opens="bin" if opens else "",
        bins={"of": opens} if opens else {},
    )


def with_ends(value: MetricValue) -> tuple[float | None, float | None, float | None]:
    """Return a number and the ends of its 95% interval, for three columns of a chart."""
    return value.value, value.low, value.high


PANELS = (
    "Dots are the rms of the log-ratio in each bin, with 95% intervals by cluster. Bars are the "
    "bin's share of all squared log-ratios, outlines its share of the tokens: bins whose bar is "
    "above the outline have more than their share of the mismatch. A click on a bin lists tokens "
    "of it."
)


def _has_bins(result: ScoreResult, name: str) -> bool:
    """Tell whether a profile has a bin with a finite mismatch."""
    bins = result.profiles[name].bins if name in result.profiles else []
    return any(isfinite(bin_.log_ratio_rms.value or nan) for bin_ in bins)


def _figure(name: str, title: str, profile_name: str) -> FigureSpec:
    """Return the figure of a profile; its result adds sentences on what it shows."""
    return FigureSpec(
        name=name,
        kind="score",
        title=title,
        says=PANELS,
        chart=lambda result: profile_chart(
            result.profiles[profile_name], "" if result.examples is None else profile_name
        ),
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
