"""Figures as files, and as SVG in the colours of the page."""

from __future__ import annotations

import io
import re
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from rcdiag.files import write_bytes
from rcdiag.report.figures import drawn
from rcdiag.report.style import STYLE, VARIABLES
from rcdiag.results import Result


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


def save_figures(result: Result, folder: Path) -> list[Path]:
    """PNG and SVG files of all figures."""
    written = []
    for name, spec, figure in drawn(result):
        figure.axes[0].set_title(spec.title, loc="left")
        for kind in ("png", "svg"):
            path = folder / f"{name}.{kind}"
            write_bytes(path, _rendered(figure, kind))
            written.append(path)
    return written
