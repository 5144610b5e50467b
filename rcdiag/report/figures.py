"""Figures of a result: one function each, drawn once, for page (SVG) and paper (PNG)."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from rcdiag.files import write_bytes
from rcdiag.results import ScoreResult

# Fit for white paper, and replaced by the page's variables: one SVG serves light and dark.
INK, GRID, FIRST, SECOND = "#010203", "#dcdfe4", "#0072b2", "#d55e00"  # the last two: Okabe-Ito
VARIABLES = {INK: "var(--ink)", GRID: "var(--grid)", FIRST: "var(--first)", SECOND: "var(--second)"}

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rcdiag",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """A figure with its title and the sentence on how to read it."""

    title: str
    reading: str
    draw: Callable[[ScoreResult, Axes], None]
    size: tuple[float, float] = (5.4, 4.4)  # inches


def log_ratio_histogram(result: ScoreResult, axes: Axes) -> None:
    """Tokens by log-ratio, both axes logarithmic, either sign on its own side of 0."""
    data = result.figures["log_ratio"]
    edges, counts = np.array(data["edges"]), np.array(data["counts"])
    filled = np.flatnonzero(counts)
    smallest = edges[edges > 0][0]
    axes.stairs(counts, edges, fill=True, color=FIRST, alpha=0.85)
    axes.set_xscale("symlog", linthresh=smallest, linscale=0.5)
    axes.set_yscale("log")
    axes.set_ylim(0.7, max(counts.max(initial=1) * 2, 10))
    if len(filled):
        reach = max(abs(edges[filled[0]]), abs(edges[filled[-1] + 1]), 10 * smallest)
        axes.set_xlim(-reach * 1.2, reach * 1.2)
        axes.set_xticks(_signed_decades(smallest, reach))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_signed_power))
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.set_xlabel(f"log-ratio, {result.target} - {result.behavior} (nats)")
    axes.set_ylabel("tokens")


def _signed_decades(smallest: float, reach: float) -> list[float]:
    """Ticks at powers of ten on both sides, at most four a side, none crowding the 0."""
    low, high = round(np.log10(smallest)), int(np.floor(np.log10(reach)))
    step = max(-(-(high - low) // 4), 1)
    powers = [10.0**power for power in range(high, low, -step)]
    return [-power for power in powers] + [0.0] + powers[::-1]


def _signed_power(value: float, _: object) -> str:
    if value == 0:
        return "0"
    # U+2212 and superscripts as text, so that the SVG stays searchable.
    digits = str(round(np.log10(abs(value)))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{'−' if value < 0 else '+'}10{digits}"


def probability_scatter(result: ScoreResult, axes: Axes) -> None:
    """Cells of tokens by both policies' probability, and the tokens that are farthest apart."""
    data = result.figures["probabilities"]
    edges = np.array(data["edges"])
    cells = np.array(data["cells"], dtype=float).reshape(-1, 3)
    middle = (edges[:-1] + edges[1:]) / 2.0
    order = np.argsort(cells[:, 2])
    x, y = middle[cells[order, 0].astype(int)], middle[cells[order, 1].astype(int)]
    counts = cells[order, 2]
    strength = 0.15 + 0.85 * np.log1p(counts) / np.log1p(counts.max(initial=1.0))
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, zorder=1)
    axes.scatter(
        x, y, s=7, marker="s", color=FIRST, alpha=strength, linewidths=0, rasterized=True, zorder=2
    )
    worst = [
        (token["behavior_log_prob"], token["target_log_prob"]) for token in result.worst_tokens
    ]
    points = np.exp(np.array([pair for pair in worst if all(map(_is_number, pair))], dtype=float))
    if len(points):
        axes.scatter(
            points[:, 0],
            points[:, 1],
            s=26,
            facecolors="none",
            edgecolors=SECOND,
            linewidths=1.1,
            zorder=3,
        )
        axes.annotate(
            f"{len(points)} largest |log-ratio|",
            (0.03, 0.95),
            xycoords="axes fraction",
            color=SECOND,
            va="top",
        )
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    axes.set_xlabel(f"probability under {result.behavior}")
    axes.set_ylabel(f"probability under {result.target}")


def _is_number(value: object) -> bool:
    return isinstance(value, float) and bool(np.isfinite(value))


def by_step(result: ScoreResult, axes: Axes) -> None:
    """KL by k3 of each training step with its interval."""
    steps = sorted(result.steps, key=int)
    values = [result.steps[step]["mismatch"]["k3_kl"] for step in steps]
    at = np.array([int(step) for step in steps])
    heights = np.array([value.value for value in values])
    known = [value.low is not None for value in values]
    low = np.array([v.value if v.low is None else v.low for v in values])
    high = np.array([v.value if v.high is None else v.high for v in values])
    axes.plot(at, heights, color=FIRST, marker="o", markersize=4, linewidth=1.4)
    if any(known):
        axes.fill_between(at, low, high, color=FIRST, alpha=0.2, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("training step")
    axes.set_ylabel("KL by k3 (nats per token)")


FIGURES: dict[str, FigureSpec] = {
    "log-ratio": FigureSpec(
        "Log-ratio of tokens",
        "Mass near 0 is agreement; a fat tail on one side means that tokens are likelier under "
        "one policy than under the other. Both axes are logarithmic.",
        log_ratio_histogram,
    ),
    "probabilities": FigureSpec(
        "Probability of the same tokens under both policies",
        "On the diagonal the policies agree; the darker a cell, the more tokens (logarithmic). "
        "Rings are the tokens with the largest |log-ratio|.",
        probability_scatter,
    ),
    "steps": FigureSpec(
        "Mismatch by training step",
        "The band is the 95% cluster-bootstrap interval. A rise with the steps is drift or "
        "growing precision trouble, a jump is an event to look up in the log.",
        by_step,
    ),
}


def drawn(result: ScoreResult) -> Iterator[tuple[str, FigureSpec, Figure]]:
    """Every figure that the result has data for."""
    for name, spec in FIGURES.items():
        if name == "steps" and not result.steps:
            continue
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=spec.size, layout="constrained")
            spec.draw(result, figure.add_subplot())
            yield name, spec, figure


def to_svg(figure: Figure, name: str) -> str:
    """Inline SVG in the page's colours, with ids of its own; the same figure, the same bytes."""
    svg = _rendered(figure, "svg").decode()
    svg = svg[svg.index("<svg") :]
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    # The page scales it; a fixed size would make small screens scroll.
    head, body = svg.split(">", 1)
    return re.sub(r' (width|height)="[\d.]+pt"', "", head) + ">" + body


def _rendered(figure: Figure, kind: str) -> bytes:
    stream = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    face = "none" if kind == "svg" else "white"
    with mpl.rc_context(STYLE):
        figure.savefig(stream, format=kind, metadata=metadata, dpi=200, facecolor=face)
    return stream.getvalue()


def save_figures(result: ScoreResult, folder: Path) -> list[Path]:
    """PNG and SVG files of all figures."""
    written = []
    for name, spec, figure in drawn(result):
        figure.axes[0].set_title(spec.title, loc="left")
        for kind in ("png", "svg"):
            path = folder / f"{name}.{kind}"
            write_bytes(path, _rendered(figure, kind))
            written.append(path)
    return written
