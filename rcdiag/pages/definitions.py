"""The definition of a figure, for files, the page and `explain`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from rcdiag.entry import Entry
from rcdiag.pages.charts import Chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class FigureSpec(Struct, frozen=True, kw_only=True):
    """A figure of one kind of result: its name, its texts and its drawing.

    `chart` returns its description for a result, which the page's script and matplotlib draw. A
    figure that marks cannot show has `draw` instead, which gets the result and an empty matplotlib
    figure; the page then shows it as an image, and no CSV is written.
    """

    name: str  # unique among the figures of all kinds; also the name of its files
    kind: str  # kind of result: "score", "compare", "diagnose", ...
    title: str
    says: str  # how to read the figure, for any result
    chart: Callable[[Any], Chart] | None = None
    draw: Callable[[Any, Figure], None] | None = None
    on_page: bool = True  # whether the page shows it; `--plots` writes every figure
    applies: Callable[[Any], bool] = lambda result: True  # whether the result has its data
    size: Callable[[Any], tuple[float, float]] = lambda result: (5.4, 4.4)  # width, height; inches
    adds: Callable[[Any], str] = lambda result: ""  # sentences on the result, after `says`

    def entry(self) -> Entry:
        """Answer `rcdiag explain`: what the figure shows, and how to get it as files."""
        return Entry(
            what=f"{self.title}, in reports of `rcdiag {self.kind}`. {self.says}",
            example=f"rcdiag report {self.kind}.json --plots figures --figure {self.name} writes "
            f"figures/{self.name}.pdf, .svg and .png",
        )

    def caption(self, result: Any) -> str:
        """Return the caption of the figure for a result."""
        return f"{self.says} {self.adds(result)}".rstrip()
