"""Figures of a replayed update.

Figures of `rcdiag replay`.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rcdiag.pages.style import FIRST, GRID, INK, SECOND, FigureSpec
from rcdiag.results import MetricValue, PresetReplay, ReplayResult


def factors(result: ReplayResult, figure: Figure) -> None:
    """Log-ratios of both factors and of their product."""
    panels = figure.subplots(len(result.factors), 1, sharex=True)
    reach = 1e-3
    for axes, (name, factor) in zip(panels, result.factors.items(), strict=True):
        edges = np.array(factor.log_ratio_histogram["edges"])
        counts = np.array(factor.log_ratio_histogram["counts"])
        filled = np.flatnonzero(counts)
        if len(filled):
            reach = max(reach, abs(edges[filled[0]]), abs(edges[filled[-1] + 1]))
        axes.stairs(counts, edges, fill=True, color=FIRST, alpha=0.85)
        axes.set_yscale("log")
        axes.set_ylim(0.7, max(counts.max(initial=1) * 2, 10))
        axes.set_ylabel("tokens", fontsize=8)
        axes.set_title(f"{name}: {factor.behavior} → {factor.target}", fontsize=9, loc="right")
        if name == "staleness":
            _clip_range(result, axes)
    panels[-1].set_xscale("symlog", linthresh=1e-4, linscale=0.5)
    panels[-1].set_xlim(-1.3 * reach, 1.3 * reach)
    ticks = [at for at in (1e-3, 1e-1, 10.0) if at <= 1.3 * reach]
    panels[-1].set_xticks([*(-at for at in reversed(ticks)), 0.0, *ticks])
    panels[-1].set_xlabel("log-ratio (nats)")


def _clip_range(result: ReplayResult, axes: Axes) -> None:
    for bound in (1.0 - result.clip_low, 1.0 + result.clip_high):
        if bound > 0:
            axes.axvline(np.log(bound), color=SECOND, linewidth=1.0, linestyle="--")


def coefficients(result: ReplayResult, figure: Figure) -> None:
    """Size of the coefficient over the probability of the token, by the sign of the advantage."""
    shown = distinct(result)[:6]
    columns = min(3, len(shown))
    panels = figure.subplots(-(-len(shown) // columns), columns, squeeze=False, sharey=True).ravel()
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    for axes, (name, each) in zip(panels, shown, strict=False):
        points = np.array(each.scatter, dtype=float).reshape(-1, 3)
        for sign, colour in ((1.0, FIRST), (-1.0, SECOND)):
            some = points[points[:, 1] * sign > 0]
            axes.scatter(
                -some[:, 0],
                np.abs(some[:, 2]),
                s=4,
                color=colour,
                alpha=0.4,
                linewidths=0,
                rasterized=True,
            )
        axes.set_xscale("symlog", linthresh=1e-3)
        axes.set_yscale("log")
        axes.set_title(name, fontsize=8, loc="left")
        axes.tick_params(labelsize=7)
        axes.set_xlabel("−log-prob (nats)", fontsize=8)
    panels[0].set_ylabel("|coefficient|", fontsize=8)


def weights(result: ReplayResult, figure: Figure) -> None:
    """Tokens by their weight in the loss, one panel for each distinct preset with weights."""
    shown = weighted(result)
    columns = min(3, len(shown))
    panels = figure.subplots(-(-len(shown) // columns), columns, squeeze=False, sharex=True).ravel()
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    for axes, (name, each) in zip(panels, shown, strict=False):
        assert each.weights is not None
        edges, counts = np.array(each.weights["edges"]), np.array(each.weights["counts"])
        axes.stairs(counts, 10.0**edges, fill=True, color=FIRST, alpha=0.85)
        axes.axvline(1.0, color=INK, linewidth=0.8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(0.7, max(counts.max(initial=1) * 2, 10))
        axes.set_title(name, fontsize=8, loc="left")
        axes.tick_params(labelsize=7)
        axes.set_xlabel("weight", fontsize=8)


def weighted(result: ReplayResult) -> list[tuple[str, PresetReplay]]:
    """One preset of each set with the same weights on the same tokens."""
    found: dict[tuple[float, ...], tuple[str, PresetReplay]] = {}
    for name, each in result.presets.items():
        if each.weights is not None and each.kept_tokens:
            found.setdefault(tuple(each.weights["counts"]), (name, each))
    return list(found.values())[:6]


def distinct(result: ReplayResult) -> list[tuple[str, PresetReplay]]:
    """One preset of each set with the same coefficients."""
    found: dict[tuple[float, float], tuple[str, PresetReplay]] = {}
    for name, each in result.presets.items():
        if each.scatter:
            key = (round(each.coefficients.norm, 12), round(each.coefficients.sum, 12))
            found.setdefault(key, (name, each))
    return list(found.values())


def sequence_shares(result: ReplayResult, figure: Figure) -> None:
    """Cumulated share of the pull over sequences, the strongest first."""
    axes = figure.add_subplot()
    shown = [(name, each) for name, each in distinct(result) if each.shares is not None]
    for name, each in shown:
        assert each.shares is not None
        sums = np.cumsum(each.shares.sequences)
        shade = INK if name == "naive" else FIRST
        axes.plot(np.arange(1, len(sums) + 1), sums, color=shade, alpha=0.7, linewidth=1.1)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.03)
    axes.set_xlabel("sequences, strongest first")
    axes.set_ylabel("share of summed |coefficient|")


def _bars(
    axes: Axes, names: list[str], values: list[MetricValue], colours: list[str], label: str
) -> None:
    for index, (value, colour) in enumerate(zip(values, colours, strict=True)):
        if value.value is None:
            continue
        if value.low is not None and value.high is not None:
            axes.plot([value.low, value.high], [index, index], color=colour, linewidth=1.6)
        axes.plot(value.value, index, "o", color=colour, markersize=5)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(label)


COLOURS = {"decoupled": FIRST, "bypass": SECOND, "naive": INK}


def _with_gradient(result: ReplayResult) -> list[tuple[str, PresetReplay]]:
    return [(name, each) for name, each in result.presets.items() if each.gradient is not None]


def gradients(result: ReplayResult, figure: Figure) -> None:
    """Direction and size of each preset's gradient against the reference."""
    left, right = figure.subplots(1, 2, sharey=True)
    found = _with_gradient(result)
    colours = [COLOURS[each.mode] for _, each in found]
    reports = [each.gradient for _, each in found if each.gradient is not None]
    _bars(left, [name for name, _ in found], [each.cosine for each in reports], colours, "cosine")
    for index, (each, colour) in enumerate(zip(reports, colours, strict=True)):
        if each.cosine_whole is not None:
            left.plot(each.cosine_whole, index, "|", color=colour, markersize=9)
        if each.norm_ratio is not None:
            right.plot(each.norm_ratio, index, "|", color=colour, markersize=9)
    _bars(
        right,
        [name for name, _ in found],
        [each.norm_ratio_unbiased for each in reports],
        colours,
        "norm / reference",
    )
    right.tick_params(labelleft=False)
    left.axvline(1.0, color=INK, linewidth=0.8)
    right.axvline(1.0, color=INK, linewidth=0.8)
    ratios = [each.norm_ratio for each in reports if each.norm_ratio]
    if ratios and max(ratios) > 3.0 * min(ratios):
        right.set_xscale("log")


def after_step(result: ReplayResult, figure: Figure) -> None:
    """How far the step moves the policy, and away from the sampler."""
    left, right = figure.subplots(1, 2, sharey=True)
    found = [(name, each) for name, each in result.presets.items() if each.after_step is not None]
    names = [name for name, _ in found]
    colours = [COLOURS[each.mode] for _, each in found]
    after = [each.after_step for _, each in found]
    _bars(left, names, [each.kl_old_new for each in after if each], colours, "KL(old || new)")
    _bars(
        right, names, [each.kl_rollout_new for each in after if each], colours, "KL(rollout || new)"
    )
    right.tick_params(labelleft=False)


def layers(result: ReplayResult, figure: Figure) -> None:
    """Gradient norm by layer of each preset."""
    axes = figure.add_subplot()
    found = _with_gradient(result)
    parts = list(found[0][1].gradient.norm_by_layer)  # type: ignore[union-attr]
    values = np.array(
        [[each.gradient.norm_by_layer[part] for part in parts] for _, each in found]  # type: ignore[union-attr]
    )
    shown = np.where(values > 0, values, np.nan)
    colours = LinearSegmentedColormap.from_list("norm", [FIRST + "18", FIRST])
    if np.isfinite(shown).any():
        least, most = float(np.nanmin(shown)), float(np.nanmax(shown))
        mesh = axes.imshow(
            shown, cmap=colours, norm=LogNorm(least, max(most, 10 * least)), aspect="auto"
        )
        bar = figure.colorbar(mesh, ax=axes, label="norm", aspect=30)
        bar.outline.set_visible(False)  # type: ignore[operator]
    axes.set_xticks(range(len(parts)), parts, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(found)), [name for name, _ in found], fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(False)


def over_steps(result: ReplayResult, figure: Figure) -> None:
    """Distance from the sampler after each step, presets side by side."""
    axes = figure.add_subplot()
    names = list(result.steps[0].presets)
    for name in names:
        points = [
            (step.step, step.presets[name].after_step.kl_rollout_new.value)  # type: ignore[union-attr]
            for step in result.steps
            if step.presets[name].after_step is not None
        ]
        if points:
            x, y = zip(*points, strict=True)
            mode = result.steps[0].presets[name].mode
            axes.plot(x, y, marker="o", markersize=4, color=COLOURS.get(mode, GRID), label=name)
    if len(names) <= 6:
        axes.legend(fontsize=7, frameon=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    axes.set_ylabel("KL(rollout || new), nats per token")


def _has_gradient(result: ReplayResult) -> bool:
    return any(each.gradient is not None for each in result.presets.values())


def _by_presets(result: ReplayResult) -> tuple[float, float]:
    return (11.0, 1.4 + 0.26 * len(result.presets))


def _grid(count: int) -> tuple[float, float]:
    """Room for so many panels, three in a row."""
    return (5.4, 4.4) if count == 1 else (11.0, 3.4 * (-(-count // 3)))


def _panels(result: ReplayResult) -> tuple[float, float]:
    return _grid(min(len(distinct(result)), 6))


FIGURES_OF_REPLAY: dict[str, FigureSpec] = {
    "factors": FigureSpec(
        "The two factors of the ratio",
        "Sampler to trainer is mismatch, trainer to current policy is staleness; bypass takes "
        "their product. Dashed lines are the clip range of PPO.",
        factors,
    ),
    "shares": FigureSpec(
        "Who gets the gradient",
        "Sequences by their share of the summed |d loss / d log-prob|, one line per distinct "
        "preset, black without correction. A line that starts high is an update by few sequences.",
        sequence_shares,
        lambda result: any(each.shares for each in result.presets.values()),
    ),
    "weights": FigureSpec(
        "Weights in the loss",
        "Kept tokens by their importance weight, both axes logarithmic; weights of 0 stand at the "
        "left edge. A wall on the right is truncation. Presets with the same weights are shown "
        "once.",
        weights,
        lambda result: bool(weighted(result)),
        size=lambda result: _grid(len(weighted(result))),
    ),
    "coefficients": FigureSpec(
        "Pull on single tokens",
        "A dot is a token: how unlikely it is, and how hard the loss pulls at it; blue where the "
        "advantage is above 0, orange below. Presets with the same pull are shown once.",
        coefficients,
        lambda result: bool(distinct(result)),
        size=_panels,
    ),
    "gradients": FigureSpec(
        "Gradient against the reference",
        "Left the direction: dots with 95% intervals are unbiased, bars are of the whole "
        "gradients, which noise that both share makes larger; right the size. Blue decoupled, "
        "orange bypass, black without correction.",
        gradients,
        _has_gradient,
        size=_by_presets,
    ),
    "after-step": FigureSpec(
        "After the step",
        "How far the step moves the policy from where it was, and how far it then is from the "
        "sampler, nats per token with 95% intervals.",
        after_step,
        lambda result: any(each.after_step for each in result.presets.values()),
        size=_by_presets,
    ),
    "layers": FigureSpec(
        "Gradient norm by layer",
        "Colours are logarithmic. A layer that stands out in one preset alone is where its "
        "weights act.",
        layers,
        _has_gradient,
        size=_by_presets,
    ),
    "steps": FigureSpec(
        "Over several steps",
        "Every preset goes its own way from the same start: distance from the sampler of each "
        "step's batch.",
        over_steps,
        lambda result: len(result.steps) > 1,
    ),
}
