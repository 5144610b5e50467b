"""The parts of a page: a tab is a list of sections, a section a list of blocks.

The modules in `tabs` make them from results, and one template renders them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan
from typing import Any, ClassVar

from msgspec import Struct, field

from rcdiag.formats import listed, measured, number, percentage
from rcdiag.results import MetricValue


class Cell(Struct, frozen=True, kw_only=True):
    """A cell of a table: its text, and the value that it is sorted by."""

    text: str
    order: float | str | None = None  # sort value; None: the text
    level: str = ""  # ok, unknown, note, warning or error: determines the text's colour
    term: str = ""  # a name of the glossary; clicking the text opens its entry
    code: bool = False
    note: str = ""  # second line in small type

    @property
    def sort(self) -> str | None:
        """Return the value that the page's script sorts by; None for the text."""
        if self.order is None or isinstance(self.order, str):
            return self.order
        return "" if isnan(self.order) else f"{self.order:.6g}"


def text(value: str, **more: Any) -> Cell:
    """Make a cell of plain text."""
    return Cell(text=value, **more)


def code(value: str) -> Cell:
    """Make a cell that shows a name as code."""
    return Cell(text=value, code=True)


def term(name: str, **more: Any) -> Cell:
    """Make a cell that shows a name as code and opens its glossary entry."""
    return Cell(text=name, term=name, code=True, **more)


def equal_names(names: Sequence[str]) -> Cell:
    """Make a cell with several names for one thing: the first, and others below it."""
    first, *others = names
    return term(first, note=listed(others))


def amount(value: float | None, written: str | None = None, **more: Any) -> Cell:
    """Make a cell with a number; empty for None. Zeros fill up its three digits."""
    if value is None:
        return Cell(text="", order=float("nan"), **more)
    if written is None:
        written = number(value)
        if "." in written:
            written = _filled(written, value)
    return Cell(text=written, order=float(value), **more)


def _filled(written: str, value: float, unit: str = "") -> str:
    """Write a number that was rounded to three digits with all three: 0.2 as 0.200."""
    rounded = value and written == f"{value:.3g}{unit}"
    return f"{f'{value:#.3g}'.rstrip('.')}{unit}" if rounded else written


def count(value: float | None) -> Cell:
    """Make a cell with a whole number."""
    return amount(value, None if value is None else f"{value:,.0f}")


def share(value: float | None) -> Cell:
    """Make a cell with a share, as a percentage with three digits."""
    if value is None:
        return amount(None)
    return amount(value, _filled(percentage(value), 100.0 * value, "%"))


def metric(value: MetricValue | None) -> Cell:
    """Make a cell with a number and its 95% interval below it."""
    if value is None or value.value is None:
        return amount(None)
    written, interval = measured(value)
    return amount(value.value, written, note=interval, level=value.level or "")


class TableColumn(Struct, frozen=True, kw_only=True):
    """A column of a table: its heading, and whether it holds numbers."""

    head: str
    numbers: bool = False
    term: str = ""


class TableRow(Struct, frozen=True, kw_only=True):
    """A row of a table; one with a key can be linked to and has details to open."""

    cells: Sequence[Cell]
    key: str = ""  # unique within the table; links and figures refer to it
    names: Sequence[str] = ()  # all names that lead to this row
    group: str = ""  # heading above this row, if it is the first of its group
    tag: str = ""  # word beside the first cell: recommended, reference, ...
    pale: bool = False


class PageTable(Struct, frozen=True, kw_only=True):
    """A named table that can be sorted and, if long, searched."""

    block: ClassVar[str] = "table"
    name: str
    label: str  # for screen readers
    columns: Sequence[TableColumn]
    rows: Sequence[TableRow]
    search: bool = False
    opens: str = ""  # kind of details of a row: correction, update
    screen: bool = False  # left out when printed


# A column, and the function that makes its cell for an item.
ColumnOf = tuple[TableColumn, Callable[[Any], Cell]]


def words(head: str, cell: Callable[[Any], Cell], term: str = "") -> ColumnOf:
    """Make a column of text."""
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
    """Make a table with a row for each item, without columns whose cells are all empty.

    `row` returns the other fields of an item's `TableRow`: key, names, tag, group.
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
    """A paragraph; names between backticks become code."""

    block: ClassVar[str] = "words"
    text: str
    soft: bool = False
    level: str = ""


class Lines(Struct, frozen=True, kw_only=True):
    """A list of sentences."""

    block: ClassVar[str] = "lines"
    items: Sequence[str]


class Terms(Struct, frozen=True, kw_only=True):
    """A list of names that open their glossary entries, each with a short reason."""

    block: ClassVar[str] = "terms"
    items: Sequence[tuple[str, str]]  # name, and why it is listed


class Snippet(Struct, frozen=True, kw_only=True):
    """A text to copy: a command or a configuration."""

    block: ClassVar[str] = "snippet"
    label: str
    text: str
    opened: bool = True


class Fold(Struct, frozen=True, kw_only=True):
    """Blocks that are hidden until a summary line is clicked."""

    block: ClassVar[str] = "fold"
    label: str
    blocks: Sequence[Any]


class Figure(Struct, frozen=True, kw_only=True):
    """A figure: the script draws its chart; a figure without a chart is an image."""

    block: ClassVar[str] = "figure"
    name: str
    title: str
    caption: str
    chart: dict[str, Any] | None = None
    image: str = ""  # its address, a `data:` URL
    wide: bool = False


class Figures(Struct, frozen=True, kw_only=True):
    """Figures side by side; with a picker, one at a time."""

    block: ClassVar[str] = "figures"
    items: Sequence[Figure]
    picker: str = ""  # label of the picker


class Gauge(Struct, frozen=True, kw_only=True):
    """A number with its interval on a bar of bands; positions are fractions of the bar."""

    name: str  # the metric, a name of the glossary
    title: str
    value: str
    unit: str
    about: str  # interval and limits as text
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
    """A part that the template renders in its own way, selected by name."""

    block: ClassVar[str] = "part"
    name: str
    data: Any = None


Block = PageTable | Fold | Paragraph | Lines | Terms | Snippet | Figure | Figures | Gauges | Slot


class Section(Struct, frozen=True, kw_only=True):
    """A section of a tab: a heading and its blocks."""

    title: str
    blocks: Sequence[Block]
    name: str = ""  # target of links
    screen: bool = False  # left out when printed


class Tab(Struct, frozen=True, kw_only=True):
    """A tab of the page."""

    name: str
    title: str
    heading: str
    sections: Sequence[Section] = field(default_factory=tuple)


def tab_of(name: str, title: str, heading: str, *sections: Section | None) -> Tab:
    """Make a tab of the sections that are not None."""
    known = [section for section in sections if section is not None]
    return Tab(name=name, title=title, heading=heading, sections=known)
