"""Figures of the step that a model takes: its gradient, and the policy after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rcdiag.pages.charts import Axis, Chart, Series
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.replay.words import by_health
from rcdiag.pages.shapes import name_ticks, shades, whole_numbers
from rcdiag.pages.style import FIRST, GRID, INK, SECOND
from rcdiag.results import GradientReport, MetricValue, ReplayResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"decoupled": FIRST, "bypass": SECOND, "naive": INK}  # by the mode of a preset


def gradients(result: ReplayResult, figure: Figure) -> None:
    """Draw direction and size of each preset's gradient against the reference."""
    left, right = figure.subplots(1, 2, sharey=True)
    reports = _gradients(result)
    colours = [COLOURS[result.presets[name].mode] for name in reports]
    unbiased = [report.cosine for report in reports.values()]
    _intervals(left, list(reports), unbiased, colours, "cosine")
    for index, (report, colour) in enumerate(zip(reports.values(), colours, strict=True)):
        if report.cosine_whole is not None:
            left.plot(report.cosine_whole, index, "|", color=colour, markersize=9)
        if report.norm_ratio is not None:
            right.plot(report.norm_ratio, index, "|", color=colour, markersize=9)
    unbiased = [report.norm_ratio_unbiased for report in reports.values()]
    _intervals(right, list(reports), unbiased, colours, "norm / reference")
    right.tick_params(labelleft=False)
    left.axvline(1.0, color=INK, linewidth=0.8)
    right.axvline(1.0, color=INK, linewidth=0.8)
    ratios = [report.norm_ratio for report in reports.values() if report.norm_ratio]
    if ratios and max(ratios) > 3.0 * min(ratios):
        right.set_xscale("log")


def gradients_chart(result: ReplayResult) -> Chart:
    """Return direction and length of each gradient against the reference."""
    return Chart(
        form="dots",
        columns=(
            *("preset", "cosine", "low", "high", "whole cosine", "length / reference", "norm"),
            "equal",
        ),
        rows=_once(
            [
                (
                    name,
                    report.cosine.value,
                    report.cosine.low,
                    report.cosine.high,
                    report.cosine_whole,
                    report.norm_ratio,
                    report.grad_norm,
                )
                for name, report in _gradients(result).items()
            ]
        ),
        x=Axis(label="cosine with the reference"),
        series=(
            Series(label="without shared noise", y="cosine", low="low", high="high", tone="first"),
            Series(label="whole gradients", y="whole cosine", tone="soft"),
        ),
        options={"opens": "update"},
    )


def _once(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Merge rows with the same numbers; a last column names the others."""
    names: dict[tuple[Any, ...], list[str]] = {}
    for name, *numbers in rows:
        # Presets may sum in different orders, so that equal numbers differ in their last bits.
        key = tuple(f"{each:.7g}" if isinstance(each, float) else each for each in numbers)
        names.setdefault(key, []).append(name)
    seen = {alike[0]: ", ".join(alike[1:]) for alike in names.values()}
    return [(*row, seen[row[0]]) for row in rows if row[0] in seen]


def _gradients(result: ReplayResult) -> dict[str, GradientReport]:
    """Return the gradients of the presets that have one, the safest first."""
    return {
        name: preset.gradient
        for name, preset in by_health(result).items()
        if preset.gradient is not None
    }


def _intervals(
    axes: Axes,
    names: Sequence[str],
    values: Sequence[MetricValue],
    colours: Sequence[str],
    label: str,
) -> None:
    """Draw a row per preset: its value as a dot, its 95% interval as a line."""
    for index, (value, colour) in enumerate(zip(values, colours, strict=True)):
        if value.value is None:
            continue
        if value.low is not None and value.high is not None:
            axes.plot([value.low, value.high], [index, index], color=colour, linewidth=1.6)
        axes.plot(value.value, index, "o", color=colour, markersize=5)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(label)


def after_step(result: ReplayResult, figure: Figure) -> None:
    """Draw how far the step moves the policy, and away from the sampler."""
    left, right = figure.subplots(1, 2, sharey=True)
    after = {
        name: preset.after_step
        for name, preset in by_health(result).items()
        if preset.after_step is not None
    }
    names, colours = list(after), [COLOURS[result.presets[name].mode] for name in after]
    moved = [step.kl_old_new for step in after.values()]
    away = [step.kl_rollout_new for step in after.values()]
    _intervals(left, names, moved, colours, "KL(old || new)")
    _intervals(right, names, away, colours, "KL(rollout || new)")
    if positive := [value.value for value in moved if value.value]:
        left.set_xscale("log")
        left.set_xlim(left=min(positive) / 4.0)
    whole_numbers(right.xaxis)
    right.tick_params(labelleft=False)


def after_step_chart(result: ReplayResult) -> Chart:
    """Return the same distances by preset; those from the sampler stand in its values alone.

    The distances from the sampler hardly differ between presets; the table of the tab has their
    paired differences.
    """
    after = {n: p.after_step for n, p in by_health(result).items() if p.after_step is not None}
    return Chart(
        form="dots",
        columns=(
            *("preset", "old to new", "low", "high"),
            *("rollout to new", "rollout low", "rollout high"),
            "equal",
        ),
        rows=_once(
            [
                (
                    name,
                    *(step.kl_old_new.value, step.kl_old_new.low, step.kl_old_new.high),
                    *(step.kl_rollout_new.value, step.kl_rollout_new.low, step.kl_rollout_new.high),
                )
                for name, step in after.items()
            ]
        ),
        x=Axis(label="KL(old || new) by k3 (nats per token)", scale="log"),
        series=(
            Series(label="KL(old || new)", y="old to new", low="low", high="high", tone="first"),
        ),
        options={"opens": "update"},
    )


def layers(result: ReplayResult, figure: Figure) -> None:
    """Draw the gradient norm by layer of each preset."""
    axes = figure.add_subplot()
    norms = {name: report.norm_by_layer for name, report in _gradients(result).items()}
    parts = list(next(iter(norms.values())))
    values = np.array([[by_layer[part] for part in parts] for by_layer in norms.values()])
    shown = np.where(values > 0, values, np.nan)
    if np.isfinite(shown).any():
        least, most = float(np.nanmin(shown)), float(np.nanmax(shown))
        mesh = axes.imshow(
            shown,
            cmap=shades(FIRST + "18", FIRST),
            norm="log",
            vmin=least,
            vmax=max(most, 10 * least),
            aspect="auto",
        )
        bar = figure.colorbar(mesh, ax=axes, label="norm", aspect=30)
        bar.outline.set_visible(False)
    name_ticks(axes, parts)
    axes.set_yticks(range(len(norms)), list(norms), fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(False)


def over_steps(result: ReplayResult, figure: Figure) -> None:
    """Draw the distance from the sampler after each step, presets side by side."""
    from matplotlib.ticker import MaxNLocator

    axes = figure.add_subplot()
    presets = result.steps[0].presets
    for name, preset in presets.items():
        points = [
            (step.step, after.kl_rollout_new.value)
            for step in result.steps
            if (after := step.presets[name].after_step) is not None
        ]
        if points:
            x, y = zip(*points, strict=True)
            colour = COLOURS.get(preset.mode, GRID)
            axes.plot(x, y, marker="o", markersize=4, color=colour, label=name)
    if len(presets) <= 6:
        axes.legend(fontsize=7, frameon=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    axes.set_ylabel("KL(rollout || new), nats per token")


def over_steps_chart(result: ReplayResult) -> Chart:
    """Return the distance from the sampler after each step, by preset."""
    return Chart(
        form="curves",
        columns=("preset", "step", "KL(rollout || new)", "low", "high"),
        rows=[
            (
                name,
                step.step,
                after.kl_rollout_new.value,
                after.kl_rollout_new.low,
                after.kl_rollout_new.high,
            )
            for name in result.steps[0].presets
            for step in result.steps
            if (after := step.presets[name].after_step) is not None
        ],
        x=Axis(label="training step"),
        y=Axis(label="KL(rollout || new), nats per token"),
        series=(
            Series(label="presets", y="KL(rollout || new)", group="preset", tone="first"),
            Series(label="naive", y="KL(rollout || new)", group="preset", only="naive", tone="ink"),
        ),
        options={"named": True, "whole": True},
    )


def _size(result: ReplayResult) -> tuple[float, float]:
    """Return a size with a row per preset, over the whole page."""
    return (11.0, 1.4 + 0.26 * len(result.presets))


FIGURES = (
    FigureSpec(
        name="gradient-against-reference",
        kind="replay",
        title="Gradient against the reference",
        says="The direction of each preset's gradient: 1 is that of the reference. Dots with 95% "
        "intervals, where there are some, are unbiased; the others are of the whole gradients, "
        "and count the noise that preset and reference share. Presets stand by their "
        "health, the safest first; those with equal numbers share a row.",
        draw=gradients,
        chart=gradients_chart,
        applies=lambda result: bool(_gradients(result)),
        size=_size,
    ),
    FigureSpec(
        name="kl-after-step",
        kind="replay",
        title="After the step",
        says="How far the step moves the policy from where it was, with 95% intervals. How far it "
        "then is from the sampler hardly differs between presets: the values have it, and the "
        "table its paired differences. Presets stand by their health, the safest first; those with "
        "equal numbers share a row.",
        draw=after_step,
        chart=after_step_chart,
        applies=lambda result: any(preset.after_step for preset in result.presets.values()),
        size=_size,
    ),
    FigureSpec(
        name="gradient-norm-by-layer",
        kind="replay",
        title="Gradient norm by layer",
        says="Colours are logarithmic. A layer that stands out in one preset alone is where its "
        "weights act.",
        draw=layers,
        on_page=False,
        applies=lambda result: bool(_gradients(result)),
        size=_size,
    ),
    FigureSpec(
        name="kl-over-steps",
        kind="replay",
        title="Over several steps",
        says="Every preset goes its own way from the same start: distance from the sampler of "
        "each step's batch.",
        draw=over_steps,
        chart=over_steps_chart,
        applies=lambda result: len(result.steps) > 1,
    ),
)
