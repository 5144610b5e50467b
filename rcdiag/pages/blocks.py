"""The parts of the page: a tab is a list of sections, a section a list of the blocks below.

The modules of `tabs` fill them from results; one template renders them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isclose, isnan
from typing import Any, ClassVar

from msgspec import Struct, field

from rcdiag.formats import measured, number, percentage
from rcdiag.results import MetricValue

MOST_NAMES = 1  # below the first name of a row


class Cell(Struct, frozen=True, kw_only=True):
    """A cell of a table: its text, and what it is sorted by."""

    text: str
    order: float | str | None = None  # None: by the text
    level: str = ""  # ok, unknown, note, warning or error: the colour of the text
    term: str = ""  # a name that `rcdiag explain` answers; the text opens what it says
    code: bool = False
    note: str = ""  # a second line in small type

    @property
    def sort(self) -> str | None:
        """Return what the page's script sorts by; None where it can use the text."""
        if self.order is None or isinstance(self.order, str):
            return self.order
        if isnan(self.order):
            return "" if self.text else None
        return None if _reads(self.text, self.order) else f"{self.order:.6g}"


def _reads(written: str, value: float) -> bool:
    """Tell whether the script can sort by the text, that is, parse the rounded number from it."""
    try:
        read = float(written.replace(",", "").removesuffix("%"))
    except ValueError:
        return False
    return isclose(read / 100.0 if written.endswith("%") else read, value, rel_tol=0.01)


def text(value: str, **more: Any) -> Cell:
    """Make a cell of plain text."""
    return Cell(text=value, **more)


def code(value: str, **more: Any) -> Cell:
    """Make a cell that shows a name."""
    return Cell(text=value, code=True, **more)


def term(name: str, **more: Any) -> Cell:
    """Make a cell that shows a name and opens what `rcdiag explain` says of it."""
    return Cell(text=name, term=name, code=True, **more)


def equals(names: Sequence[str]) -> Cell:
    """Make a cell of several names for one thing: the first, and some of the others below it."""
    first, *others = names
    more = f" and {len(others) - MOST_NAMES} more" if len(others) > MOST_NAMES else ""
    return term(first, note=f"{', '.join(others[:MOST_NAMES])}{more}")


def amount(value: float | None, written: str | None = None, **more: Any) -> Cell:
    """Make a cell of a number; empty where there is none."""
    if value is None:
        return Cell(text="", order=float("nan"), **more)
    return Cell(text=number(value) if written is None else written, order=float(value), **more)


def count(value: float | None) -> Cell:
    """Make a cell of a whole number."""
    return amount(value, None if value is None else f"{value:,.0f}")


def share(value: float | None) -> Cell:
    """Make a cell of a share, as a percentage with three digits."""
    return amount(value, None if value is None else percentage(value))


def metric(value: MetricValue | None) -> Cell:
    """Make a cell of a number with its 95% interval below it."""
    if value is None or value.value is None:
        return amount(None)
    written, interval = measured(value)
    return amount(value.value, written, note=interval, level=value.level or "")


class TableColumn(Struct, frozen=True, kw_only=True):
    """A column of a table: its head, and whether it holds numbers."""

    head: str
    numbers: bool = False
    term: str = ""


class TableRow(Struct, frozen=True, kw_only=True):
    """A row of a table; one with a key can be linked to and opens its details."""

    cells: Sequence[Cell]
    key: str = ""  # names the row within its table: links and figures point at it
    names: Sequence[str] = ()  # all names that lead to this row
    group: str = ""  # a heading above this row, which is the first of its group
    tag: str = ""  # a word beside the first cell: recommended, reference, ...
    pale: bool = False


class PageTable(Struct, frozen=True, kw_only=True):
    """A table with a name; long ones can be searched, all can be sorted."""

    block: ClassVar[str] = "table"
    name: str
    label: str  # what a screen reader calls it
    columns: Sequence[TableColumn]
    rows: Sequence[TableRow]
    search: bool = False
    opens: str = ""  # what the script shows of a row that is opened: presets, updates, pairs
    screen: bool = False  # left out in print


# A column with what writes its cell for an item.
ColumnOf = tuple[TableColumn, Callable[[Any], Cell]]


def words(head: str, cell: Callable[[Any], Cell], term: str = "") -> ColumnOf:
    """Make a column of words."""
    return TableColumn(head=head, term=term), cell


def numbers(head: str, cell: Callable[[Any], Cell], term: str = "") -> ColumnOf:
    """Make a column of numbers."""
    return TableColumn(head=head, numbers=True, term=term), cell


def table(
    name: str,
    label: str,
    columns: Sequence[ColumnOf],
    items: Iterable[Any],
    row: Callable[[Any], Mapping[str, Any]] = lambda item: {},
    **more: Any,
) -> PageTable:
    """Make a table with a row for each item; columns in which no item has anything are left out.

    `row` gives what a row has beside its cells: key, names, tag, group.
    """
    rows = list(items)
    filled = [(column, [cell(item) for item in rows]) for column, cell in columns]
    filled = [
        (column, cells) for column, cells in filled if any(cell.text or cell.note for cell in cells)
    ]
    return PageTable(
        name=name,
        label=label,
        columns=[column for column, _ in filled],
        rows=[
            TableRow(cells=[cells[place] for _, cells in filled], **row(item))
            for place, item in enumerate(rows)
        ],
        **more,
    )


class Paragraph(Struct, frozen=True, kw_only=True):
    """A paragraph, with names between backticks."""

    block: ClassVar[str] = "words"
    text: str
    soft: bool = False
    level: str = ""


class Lines(Struct, frozen=True, kw_only=True):
    """A list of sentences."""

    block: ClassVar[str] = "lines"
    items: Sequence[str]
    ordered: bool = False


class Terms(Struct, frozen=True, kw_only=True):
    """A line of names that open what `rcdiag explain` says of them, each with a few words."""

    block: ClassVar[str] = "terms"
    items: Sequence[tuple[str, str]]  # name, and the reason why it stands there


class Snippet(Struct, frozen=True, kw_only=True):
    """A text to copy: a command or a configuration."""

    block: ClassVar[str] = "snippet"
    label: str
    text: str
    opened: bool = True


class Fold(Struct, frozen=True, kw_only=True):
    """Blocks that are folded away behind a line."""

    block: ClassVar[str] = "fold"
    label: str
    blocks: Sequence[Any]


class Figure(Struct, frozen=True, kw_only=True):
    """A figure of the page: the script draws its chart, or its SVG stands in the page."""

    block: ClassVar[str] = "figure"
    name: str
    title: str
    caption: str
    chart: dict[str, Any] | None = None
    svg: str = ""
    leading: bool = False  # its SVG stands in for the chart where no script runs
    wide: bool = False


class Figures(Struct, frozen=True, kw_only=True):
    """Figures beside each other; with a picker one is shown at a time."""

    block: ClassVar[str] = "figures"
    items: Sequence[Figure]
    picker: str = ""  # the label of the picker


class Gauge(Struct, frozen=True, kw_only=True):
    """A number on a bar of three bands, with its interval; places are shares of the bar."""

    name: str  # a name that `rcdiag explain` answers
    title: str
    value: str
    unit: str
    about: str  # interval and limits in words
    level: str
    source: str
    bands: Sequence[tuple[float, float, str]] = ()  # start, end, level
    at: float | None = None
    low: float | None = None
    high: float | None = None


class Gauges(Struct, frozen=True, kw_only=True):
    """Gauges in a row."""

    block: ClassVar[str] = "gauges"
    items: Sequence[Gauge]


class Slot(Struct, frozen=True, kw_only=True):
    """A part that the template writes in a way of its own, by its name, with its data."""

    block: ClassVar[str] = "part"
    name: str
    data: Any = None


Block = PageTable | Fold | Paragraph | Lines | Terms | Snippet | Figure | Figures | Gauges | Slot


class Section(Struct, frozen=True, kw_only=True):
    """A section of a tab: a heading and what stands below it."""

    title: str
    blocks: Sequence[Block]
    name: str = ""  # for links
    screen: bool = False  # left out in print


class Tab(Struct, frozen=True, kw_only=True):
    """A tab of the page."""

    name: str
    title: str
    heading: str
    sections: Sequence[Section] = field(default_factory=tuple)


def tab_of(name: str, title: str, heading: str, *sections: Section | None) -> Tab:
    """Make a tab of the sections that there are."""
    known = [section for section in sections if section is not None]
    return Tab(name=name, title=title, heading=heading, sections=known)
