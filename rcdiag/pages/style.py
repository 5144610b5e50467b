"""Colours and matplotlib settings of all figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rcdiag.errors import RcdiagError
from rcdiag.files import without_controls

# Colours for white paper; in a page they become CSS variables, so that one SVG serves light and
# dark.
INK, SOFT, GRID = "#010203", "#59636e", "#dcdfe4"
FIRST, SECOND = "#0072b2", "#d55e00"  # Okabe-Ito
VARIABLES = {
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    GRID: "var(--grid)",
    FIRST: "var(--first)",
    SECOND: "var(--second)",
}

STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # whole fonts, as journals ask for
    "svg.hashsalt": "rcdiag",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.formatter.limits": (-3, 5),
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "none",
    # The exponent of the topmost tick label needs more room than the default leaves.
    "figure.constrained_layout.h_pad": 0.07,
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@contextmanager
def own_style(more: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Draw with matplotlib's defaults and STYLE, ignoring any matplotlibrc of the machine.

    matplotlib reads the one of the current folder, which may be a stranger's: `text.usetex: True`
    there would run the first `latex` on PATH.
    """
    try:
        import matplotlib as mpl
    except (UnicodeDecodeError, OSError) as error:
        raise RcdiagError(
            f"matplotlib cannot be loaded: its matplotlibrc cannot be read ({error})",
            hint="remove the file matplotlibrc from the current folder, or run in another one",
        ) from error
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**STYLE, **(more or {})})
        yield


NARROW = 5.0  # inches: below, a figure is as wide as a column of a paper
NOTEBOOK_DPI = 110


def as_text(name: str) -> str:
    """Return a name as matplotlib shows it: what stands between `$` would be set as a formula."""
    return without_controls(name).replace("\t", " ").replace("$", r"\$")
