"""Figures of a model's step: its gradient, and the policy after it."""

from __future__ import annotations

from rcdiag.pages.charts import Chart, ChartAxis, Mark, Panel, ReferenceLine
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.replay.pull import lines_of_presets
from rcdiag.pages.replay.words import by_health
from rcdiag.pages.score.profiles import with_ends
from rcdiag.results import GradientReport, ReplayResult

FAR_APART = 3.0  # lengths whose ratio is larger have a logarithmic axis


def gradients(result: ReplayResult) -> Chart:
    """Return the chart of direction and length of each gradient relative to the reference."""
    rows = [
        (
            name,
            *with_ends(report.cosine),
            report.cosine_whole,
            report.norm_ratio,
            *with_ends(report.norm_ratio_unbiased),
            report.grad_norm,
            equal,
        )
        for name, equal, report in _gradients(result)
    ]
    direction, length = (
        [
            Mark(
                shape="dot",
                x=unbiased,
                y="preset",
                low=f"{unbiased} low",
                high=f"{unbiased} high",
                label="without shared noise",
            ),
            Mark(shape="dot", x=whole, y="preset", label="whole gradients", tone="soft"),
        ]
        for unbiased, whole in (("cosine", "whole cosine"), ("length", "whole length"))
    )
    names = [str(row[0]) for row in rows]
    ratios = [report.norm_ratio for _, _, report in _gradients(result) if report.norm_ratio]
    apart = bool(ratios) and max(ratios) > FAR_APART * min(ratios)
    return Chart(
        columns=(
            *("preset", "cosine", "cosine low", "cosine high", "whole cosine", "whole length"),
            *("length", "length low", "length high", "norm", "equal"),
        ),
        rows=rows,
        panels=[
            Panel(
                x=ChartAxis(label="cosine with the reference"),
                y=ChartAxis(scale="names", names=names),
                marks=direction,
                rules=[ReferenceLine(at=1.0)],
            ),
            Panel(
                x=ChartAxis(label="length / reference", scale="log" if apart else "linear"),
                y=ChartAxis(scale="names", names=names),
                marks=length,
                rules=[ReferenceLine(at=1.0)],
            ),
        ],
        across=2,
        opens="update",
    )


def _gradients(result: ReplayResult) -> list[tuple[str, str, GradientReport]]:
    """Return the gradient of each distinct update: a preset, those equal to it, the gradient."""
    return [
        (group.names[0], ", ".join(group.names[1:]), group.preset.gradient)
        for group in by_health(result)
        if group.preset.gradient is not None
    ]


def after_step(result: ReplayResult) -> Chart:
    """Return the chart of how far the step moves the policy.

    Distances from the sampler hardly differ between presets, so they are only in the values; the
    tab shows their paired differences.
    """
    rows = [
        (
            group.names[0],
            *with_ends(after.kl_old_new),
            *with_ends(after.kl_rollout_new),
            ", ".join(group.names[1:]),
        )
        for group in by_health(result)
        if (after := group.preset.after_step) is not None
    ]
    return Chart(
        columns=(
            *("preset", "old to new", "low", "high"),
            *("rollout to new", "rollout low", "rollout high"),
            "equal",
        ),
        rows=rows,
        panels=[
            Panel(
                x=ChartAxis(label="KL(old || new) by k3 (nats per token)", scale="log"),
                y=ChartAxis(scale="names", names=[str(row[0]) for row in rows]),
                marks=[Mark(shape="dot", x="old to new", y="preset", low="low", high="high")],
            )
        ],
        opens="update",
    )


def layers(result: ReplayResult) -> Chart:
    """Return the chart of the gradient norm by layer of each preset, as shaded cells."""
    norms = {name: report.norm_by_layer for name, _, report in _gradients(result)}
    parts = list(next(iter(norms.values())))
    return Chart(
        columns=("preset", "layer", "norm"),
        rows=[(name, part, by_layer[part]) for name, by_layer in norms.items() for part in parts],
        panels=[
            Panel(
                x=ChartAxis(scale="names", names=parts),
                y=ChartAxis(scale="names", names=list(norms)),
                marks=[Mark(shape="cell", x="layer", y="preset", value="norm")],
                shade=ChartAxis(label="norm", scale="log"),
            )
        ],
    )


def over_steps(result: ReplayResult) -> Chart:
    """Return the chart of the distance from the sampler after each step, by preset."""
    column = "KL(rollout || new)"
    names = [
        name
        for name in result.steps[0].presets
        if any(step.presets[name].after_step is not None for step in result.steps)
    ]
    return Chart(
        columns=("preset", "step", column, "low", "high"),
        rows=[
            (name, step.step, *with_ends(after.kl_rollout_new))
            for name in names
            for step in result.steps
            if (after := step.presets[name].after_step) is not None
        ],
        panels=[
            Panel(
                x=ChartAxis(label="training step", whole=True),
                y=ChartAxis(label=f"{column}, nats per token"),
                marks=lines_of_presets(names, "step", column, ("low", "high")),
            )
        ],
    )


def _size(result: ReplayResult) -> tuple[float, float]:
    """Return a figure size with a row for each preset, as wide as the page."""
    return (11.0, 1.4 + 0.26 * len(result.presets))


FIGURES = (
    FigureSpec(
        name="gradient-against-reference",
        kind="replay",
        title="Gradient against the reference",
        says="Direction (cosine) and length of each preset's gradient relative to the reference, "
        "where both are 1. Dots with 95% intervals, if there are any, are unbiased; the others "
        "compare whole gradients, including the noise that preset and reference share. Presets "
        "are ordered by health, the safest first; those with equal numbers share a row.",
        chart=gradients,
        applies=lambda result: bool(_gradients(result)),
        size=_size,
    ),
    FigureSpec(
        name="kl-after-step",
        kind="replay",
        title="After the step",
        says="How far the step moves the policy, with 95% intervals. Its distance from the sampler "
        "hardly differs between presets: see the values, and the paired differences in the table. "
        "Presets are ordered by health, the safest first; those with equal numbers share a row.",
        chart=after_step,
        applies=lambda result: any(preset.after_step for preset in result.presets.values()),
        size=_size,
    ),
    FigureSpec(
        name="gradient-norm-by-layer",
        kind="replay",
        title="Gradient norm by layer",
        says="Colours are logarithmic. If a layer stands out in only one preset, its weights act "
        "mainly there.",
        chart=layers,
        on_page=False,
        applies=lambda result: bool(_gradients(result)),
        size=_size,
    ),
    FigureSpec(
        name="kl-over-steps",
        kind="replay",
        title="Over several steps",
        says="Every preset trains from the same start. Shown is its distance from the sampler on "
        "the batch of each step, with 95% intervals.",
        chart=over_steps,
        applies=lambda result: len(result.steps) > 1,
    ),
)
