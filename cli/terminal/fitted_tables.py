"""Tables that fit the terminal: if it is narrow, whole columns are left out in a given order.

Columns that a decision needs, such as the level, stay; the caption names those that are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

WIDE = 10_000
COLOURS = {"ok": "green", "unknown": "magenta", "note": "cyan", "warning": "yellow", "error": "red"}
BLOCKS = " ▁▂▃▄▅▆▇█"


def level(name: str | None) -> str:
    """Return a level as coloured markup."""
    return f"[{COLOURS[name]}]{name}[/]" if name else ""


class ScreenColumn(Struct, frozen=True, kw_only=True):
    """A column of a table on the terminal."""

    heading: str
    align: Literal["left", "right"] = "right"
    dispensable: int = 0  # the column with the highest number is left out first; 0 always stays
    words: bool = False  # its cells are sentences, which may be broken between words
    extra: bool = False  # for wide terminals only: the caption does not name it
    style: str = ""


def fitted(
    out: Console, columns: Sequence[ScreenColumn], rows: Iterable[Sequence[str]], gap: int = 1
) -> Table:
    """Return a table that is at most as wide as the terminal, with columns left out if needed.

    Columns without any cell are left out, too.
    """
    cells = [list(row) for row in rows]
    empty = [not any(row[index] for row in cells) for index in range(len(columns))]
    shown = [index for index in range(len(columns)) if not empty[index]]
    while _width(out, *_part(columns, cells, shown), gap) > out.width:
        least = max(shown, key=lambda index: columns[index].dispensable)
        if not columns[least].dispensable:
            break
        shown.remove(least)
    table = _table(*_part(columns, cells, shown), gap)
    left_out = [
        column.heading.strip()
        for index, column in enumerate(columns)
        if index not in shown and not empty[index] and not column.extra
    ]
    if left_out:
        table.caption = Text(f"not shown: {', '.join(left_out)}", "dim")
        table.caption_justify = "left"
    return table


def _part(
    columns: Sequence[ScreenColumn], cells: Sequence[Sequence[str]], shown: Sequence[int]
) -> tuple[list[ScreenColumn], list[list[str]]]:
    """Return the columns with these indices, and their cells."""
    return [columns[index] for index in shown], [[row[index] for index in shown] for row in cells]


def _width(
    out: Console, columns: Sequence[ScreenColumn], cells: Sequence[Sequence[str]], gap: int
) -> int:
    """Return the smallest width at which no cell is cut and no word broken."""
    narrow = [
        [
            max(out.render_str(cell).plain.split(), key=len, default="") if column.words else cell
            for column, cell in zip(columns, row, strict=True)
        ]
        for row in cells
    ]
    return full_width(out, _table(columns, narrow, gap))


def full_width(out: Console, table: Table) -> int:
    """Return the width in columns at which no cell of a table is cut or broken."""
    return Measurement.get(out, out.options.update(max_width=WIDE), table).maximum


def _table(columns: Sequence[ScreenColumn], cells: Sequence[Sequence[str]], gap: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for column in columns:
        table.add_column(
            column.heading,
            justify=column.align,
            no_wrap=not column.words,
            overflow="fold",
            style=column.style,
        )
    for row in cells:
        table.add_row(*row)
    return table
