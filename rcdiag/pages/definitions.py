"""The definition of a figure, for files, page and `explain`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from rcdiag.entry import Entry
from rcdiag.pages.charts import Chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class FigureSpec(Struct, frozen=True, kw_only=True):
    """A figure of one kind of result: its name, its words and the functions that draw it.

    `draw` gets the result and an empty matplotlib figure; it makes the files of `--plots`. It
    imports matplotlib itself where it needs more than the figure's methods, so that `rcdiag
    explain` reads the words without it. `chart` gives the same numbers to the page, whose script
    draws them; without it the page shows what `draw` makes.
    """

    name: str  # unique among the figures of all kinds; also the name of its files
    kind: str  # the kind of result that it is drawn from: "score", "compare", "diagnose", ...
    title: str
    says: str  # how to read the figure, in sentences that hold for every result
    draw: Callable[[Any, Figure], None]
    chart: Callable[[Any], Chart] | None = None
    on_page: bool = True  # whether the page shows it; `--plots` writes every figure
    applies: Callable[[Any], bool] = lambda result: True  # whether the result has what it draws
    size: Callable[[Any], tuple[float, float]] = lambda result: (5.4, 4.4)  # width, height; inches
    adds: Callable[[Any], str] = lambda result: ""  # sentences of the result, below the figure

    def entry(self) -> Entry:
        """Say what the figure shows and how to get it as files."""
        return Entry(
            what=f"{self.title}, in reports of `rcdiag {self.kind}`. {self.says}",
            example=f"rcdiag report {self.kind}.json --plots figures --figure {self.name} writes "
            f"figures/{self.name}.pdf, .svg and .png",
        )

    def caption(self, result: Any) -> str:
        """Return the sentences below the figure."""
        return f"{self.says} {self.adds(result)}".rstrip()
