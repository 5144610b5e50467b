"""Figures as bytes of a file, and as inline SVG in the colours of the page."""

from __future__ import annotations

import io
import re
import zlib
from typing import TYPE_CHECKING

from rcdiag.files import without_controls
from rcdiag.pages.style import VARIABLES, own_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 200  # of PNG files, and of rasterized parts of an SVG


def to_svg(figure: Figure, name: str) -> str:
    """Return inline SVG in the page's colours, with ids that begin with `name`.

    Equal figures give equal bytes.
    """
    svg = rendered(figure, "svg").decode()
    svg = svg[svg.index("<svg") :]
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, variable)
    svg = _styled_once(_numbered(_smaller(svg), name), name)
    # The page scales it; with a fixed size small screens would have to scroll.
    head, body = svg.split(">", 1)
    head = re.sub(r' (width|height)="[\d.]+pt"', "", head)
    return f'{head} id="{name}">{body}'


def _smaller(svg: str) -> str:
    """Remove what a page does not need: metadata, unused ids, digits, line ends."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda match: match[0] if match[1] in used else "", svg)
    svg = re.sub(r' transform="rotate\(-?0(?:\.0+)? [^"]*"', "", svg)
    # Only digits of attributes are removed, not those of texts.
    svg = re.sub(r'="[^"]*"', lambda match: re.sub(r"(\d\.\d\d)\d+", r"\1", match[0]), svg)
    # A tenth of a point is finer than a screen can show.
    svg = re.sub(r' (?:d|x|y)="[^"]*"', lambda match: re.sub(r"(\d\.\d)\d+", r"\1", match[0]), svg)
    return re.sub(r"\s*\n\s*", " ", re.sub(r">\s+<", "><", svg))


def _numbered(svg: str, name: str) -> str:
    """Replace referenced ids by short ones that are unique within a page."""
    stem = f"d{zlib.crc32(name.encode()):x}"
    ids = {old: f"{stem}-{place}" for place, old in enumerate(re.findall(r' id="([^"]+)"', svg))}
    svg = re.sub(r' id="([^"]+)"', lambda match: f' id="{ids[match[1]]}"', svg)
    return re.sub(r'(href="#|url\(#)([^")]+)', lambda match: match[1] + ids[match[2]], svg)


def _styled_once(svg: str, name: str) -> str:
    """Turn repeated style attributes into classes, scoped to the SVG with the id `name`."""
    styles: dict[str, str] = {}

    def classed(match: re.Match[str]) -> str:
        return f' class="{styles.setdefault(match[1], f"s{len(styles)}")}"'

    svg = re.sub(r' style="([^"]*)"', classed, svg)
    rules = "".join(f"#{name} .{label}{{{style}}}" for style, label in styles.items())
    return svg.replace("</style>", f"{rules}</style>", 1)


def rendered(figure: Figure, kind: str, dpi: int = DPI) -> bytes:
    """Return the figure as bytes of a PNG, SVG or PDF file; equal figures give equal bytes."""
    stream = io.BytesIO()
    # savefig would draw the figure twice, the first time only for the layout.
    with own_style():
        figure.dpi = dpi
        if kind == "pdf":
            from matplotlib.backends.backend_pdf import FigureCanvasPdf

            FigureCanvasPdf(figure).print_pdf(stream, metadata={"CreationDate": None})
        elif kind == "svg":
            from matplotlib.backends.backend_svg import FigureCanvasSVG

            canvas = FigureCanvasSVG(figure)
            canvas.print_svg(stream, metadata={"Date": None, "Creator": None})
            # A control character in a name would make the XML invalid.
            return without_controls(stream.getvalue().decode()).encode()
        else:
            from matplotlib.backends.backend_agg import FigureCanvasAgg

            paper = figure.get_facecolor()
            figure.set_facecolor("white")
            FigureCanvasAgg(figure).print_png(stream, metadata={"Software": None})
            figure.set_facecolor(paper)
    return stream.getvalue()
