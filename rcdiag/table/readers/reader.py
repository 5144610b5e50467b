"""A reader is a format of dumps, and turns its files into rows of the trajectory table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from rcdiag.entry import Entry
from rcdiag.table.readers.peek import Peek
from rcdiag.table.remote import AnyFile

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


# The hint where a file contradicts what its writer is known to write.
DAMAGED = "the file is damaged, or of a version of its writer that rcdiag does not know"


class Rows(Struct, frozen=True):
    """Responses that stand in one file of a dump, in its order, as columns of the table.

    Columns have the names and types of `rcdiag.table.schema`; others are kept as they are. A
    column that the file does not have is left out, and a row without a value in it holds null.
    """

    batch: pa.RecordBatch
    file: Path
    # The record that each row was made from: lines count from 1, all else from 0, [rows].
    numbers: NDArray[np.int64]
    record: str = "row"  # what the file's own records are called in a message: "line", "sample"

    def where(self, row: int) -> str:
        """Return file and record of a row, as an error names them."""
        return f"{self.file}, {self.record} {int(self.numbers[row])}"


class Notes(Struct):
    """What a conversion did to the data, for the user to read and for the table's metadata."""

    # What was dropped, shifted, filled or assumed -> number of rows that it concerns (0: all).
    changes: dict[str, int] = field(default_factory=dict)
    # What is known of the run, as the table's metadata holds it: {"rollout": {"backend": ...}}.
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)
    # What else the table's metadata is to hold, by its key: {"reencoded": {...}}.
    facts: dict[str, Any] = field(default_factory=dict)

    def change(self, text: str, rows: int = 0) -> None:
        """Note a change in one sentence; rows of the same sentence add up."""
        self.changes[text] = self.changes.get(text, 0) + rows

    def missing_ranks(self, ranks: Mapping[int, Set[int]]) -> None:
        """Note each step without the file of a rank that another step has; `ranks` are by step."""
        everywhere = set().union(*ranks.values())
        for step, having in sorted(ranks.items()):
            if lacking := sorted(everywhere - having):
                named = ", ".join(map(str, lacking[:8])) + (" ..." if len(lacking) > 8 else "")
                self.change(
                    f"step {step} has no file of rank {named}, which another step has: rows may "
                    "be missing"
                )

    def describe(self, policy: str, **facts: Any) -> None:
        """Note what the dump says of a policy: backend, dtype, temperature, options."""
        self.policies.setdefault(policy, {}).update(facts)


class Dump(Struct, frozen=True, kw_only=True):
    """Files of one format, in the order of their rows, and what the user said of them."""

    files: tuple[Path, ...]
    given: Mapping[str, Any] = field(default_factory=dict)  # {"group_size": 8, "temperature": 0.7}
    tokenizer: str | None = None  # a checkpoint or tokenizer folder, for dumps of text
    notes: Notes = field(default_factory=Notes)


def natural_order(path: AnyFile) -> tuple[Any, ...]:
    """Return a key that sorts files by the numbers in their names: step 9 before step 10."""
    parts = re.split(r"(\d+)", path.as_posix())
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)


class Reader(Struct, frozen=True, kw_only=True):
    """A format that a dump may have on disk."""

    name: str
    says: str
    patterns: tuple[str, ...]  # names of its files in a folder: "*.parquet"
    detect: Callable[[Peek], bool]  # whether a file, which is not empty, is of this format
    # The rows of all files, a few MB at a time, in bounded memory. None: files are parquet already.
    read: Callable[[Dump], Iterator[Rows]] | None
    # Names of small files that say more of those beside which they lie: "meta.json".
    beside: tuple[str, ...] = ()
    source: str = ""  # a page or file with which its writer can be checked: a URL
    order: Callable[[Any], Any] = natural_order  # the key by which its files follow each other
    # Whether columns have any names, which opening a table finds out, as those of parquet files do.
    # Such a format is asked last whether a file is of it.
    any_names: bool = False
    # Of all files of a folder, a place that the writer marked as whole and whose file is not there.
    lost: Callable[[Sequence[Path]], Path | None] = lambda files: None
    # For formats without token ids: the option of the trainer that writes token ids and log-probs.
    text_only: str = ""
    # For formats whose rows of one prompt follow each other, `group_size` at a time.
    grouped_by_order: bool = False
    # Given values that the reader asks for itself, besides those that hold for all rows.
    asks_for: tuple[str, ...] = ()

    def entry(self) -> Entry:
        """Say what writes dumps of this format, and what their files are called."""
        return Entry(
            what=self.says,
            example=f"names in a folder: {', '.join(self.patterns)}",
            links={"what writes it": self.source} if self.source else {},
        )
