"""A figure is added by a `FigureSpec`, a page by a `Page`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSpec:
    """A figure of one kind of result: its name, its words and the function that draws it.

    `draw` gets the result and an empty matplotlib figure. It imports matplotlib itself where it
    needs more than the figure's methods, so that `rcdiag explain` reads the words without it.
    """

    name: str  # unique among the figures of all kinds; also the name of its files
    kind: str  # the kind of result that it is drawn from: "score", "compare", "diagnose", ...
    title: str
    says: str  # how to read the figure, in sentences that hold for every result
    draw: Callable[[Any, Figure], None]
    applies: Callable[[Any], bool] = lambda result: True  # whether the result has what it draws
    size: Callable[[Any], tuple[float, float]] = lambda result: (5.4, 4.4)  # width, height; inches
    adds: Callable[[Any], str] = lambda result: ""  # sentences of the result, below the figure

    def caption(self, result: Any) -> str:
        """Return the sentences below the figure."""
        return f"{self.says} {self.adds(result)}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The page of one kind of result."""

    name: str  # the kind of result
    template: str  # path of the Jinja template below rcdiag/pages
    # What the template reads besides result, style, figures and headline.
    context: Callable[[Any], dict[str, Any]]
    answer: Callable[[Any], str]  # the command's own answer, in a sentence without a full stop
