"""Colours and matplotlib settings of all figures."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rcdiag.errors import RcdiagError
from rcdiag.files import without_controls

INK, SOFT, GRID = "#000000", "#59636e", "#dcdfe4"  # on white paper
FIRST, SECOND = "#0072b2", "#d55e00"  # Okabe-Ito
NOTEBOOK_DPI = 110

STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # embed whole fonts, as journals require
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
    # The default leaves too little room for the exponent of the topmost tick label.
    "figure.constrained_layout.h_pad": 0.07,
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@contextmanager
def own_style(more: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Draw with matplotlib's defaults and STYLE, ignoring any matplotlibrc.

    matplotlib would read the one in the current folder, which may be untrusted: with
    `text.usetex: True` it would run the first `latex` on PATH.
    """
    try:
        import matplotlib as mpl
    except (UnicodeDecodeError, OSError) as error:
        raise RcdiagError(
            f"matplotlib cannot be loaded: its matplotlibrc cannot be read ({error})",
            hint="remove the file matplotlibrc from the current folder, or run in another one",
        ) from error
    with mpl.rc_context(), warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box; a terminal need not say so.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        mpl.rcdefaults()
        mpl.rcParams.update({**STYLE, **(more or {})})
        yield


def as_text(name: str) -> str:
    """Escape a name for matplotlib, which would set text between `$` as a formula."""
    return without_controls(name).replace("\t", " ").replace("$", r"\$")
