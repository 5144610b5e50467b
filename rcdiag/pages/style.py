"""Colours and matplotlib settings of all figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rcdiag.errors import RcdiagError
from rcdiag.files import without_controls

# Colours for white paper; in a page they become CSS variables, so that one SVG serves light and
# dark.
INK, GRID, FIRST, SECOND = "#010203", "#dcdfe4", "#0072b2", "#d55e00"  # the last two: Okabe-Ito
VARIABLES = {INK: "var(--ink)", GRID: "var(--grid)", FIRST: "var(--first)", SECOND: "var(--second)"}

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


NARROW = 5.0  # inches: below, as in a column of a paper, letters and ticks are few and small
NOTEBOOK_DPI = 110
LONGEST = 18  # letters of a name that a figure has room for


def short(name: str) -> str:
    """Shorten a policy's name for a figure: a long one keeps both ends, which often differ."""
    half = LONGEST // 2
    return as_text(name if len(name) <= LONGEST else f"{name[:half]}…{name[1 - half :]}")


def as_text(name: str) -> str:
    """Return a name as matplotlib shows it: what stands between `$` would be set as a formula."""
    return without_controls(name).replace("\t", " ").replace("$", r"\$")
