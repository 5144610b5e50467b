"""Reader: a dump format, with a function that converts its files to rows of the table."""

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


# Hint for a file that contradicts what its writer is known to write.
DAMAGED = "the file is damaged, or of a version of its writer that rcdiag does not know"


class Rows(Struct, frozen=True):
    """Consecutive responses of one file of a dump, as columns of the table.

    Columns have the names and types of `rcdiag.table.schema`; others are kept as they are. A column
    that the file does not have is left out, and is null in rows without a value.
    """

    batch: pa.RecordBatch
    file: Path
    # The number of the record that each row comes from [rows]; lines count from 1, others from 0.
    numbers: NDArray[np.int64]
    record: str = "row"  # what messages call a record of the file: "line", "sample"

    def where(self, row: int) -> str:
        """Return the file and record of a row, for error messages."""
        return f"{self.file}, {self.record} {int(self.numbers[row])}"


class Notes(Struct):
    """What a conversion changed, for the user and for the table's metadata."""

    # What was dropped, shifted, filled or assumed -> number of rows affected (0: all).
    changes: dict[str, int] = field(default_factory=dict)
    # Facts about policies, in the form of the table's metadata: {"rollout": {"backend": ...}}.
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Other entries for the table's metadata: {"reencoded": {...}}.
    facts: dict[str, Any] = field(default_factory=dict)

    def change(self, text: str, rows: int = 0) -> None:
        """Note a change in one sentence; row counts of the same sentence add up."""
        self.changes[text] = self.changes.get(text, 0) + rows

    def missing_ranks(self, ranks: Mapping[int, Set[int]]) -> None:
        """Note steps that lack a rank's file although other steps have one; step -> ranks."""
        everywhere = set().union(*ranks.values())
        for step, having in sorted(ranks.items()):
            if lacking := sorted(everywhere - having):
                named = ", ".join(map(str, lacking[:8])) + (" ..." if len(lacking) > 8 else "")
                self.change(
                    f"step {step} has no file of rank {named}, but another step has: rows may "
                    "be missing"
                )

    def describe(self, policy: str, **facts: Any) -> None:
        """Note facts about a policy from the dump: backend, dtype, temperature, options."""
        self.policies.setdefault(policy, {}).update(facts)


class Dump(Struct, frozen=True, kw_only=True):
    """Files of one format in the order of their rows, and what the user gave for them."""

    files: tuple[Path, ...]
    given: Mapping[str, Any] = field(default_factory=dict)  # {"group_size": 8, "temperature": 0.7}
    tokenizer: str | None = None  # a checkpoint or tokenizer folder, for text-only dumps
    notes: Notes = field(default_factory=Notes)


def natural_order(path: AnyFile) -> tuple[Any, ...]:
    """Return a sort key that orders files by the numbers in their names: step 9 before step 10."""
    parts = re.split(r"(\d+)", path.as_posix())
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)


class Reader(Struct, frozen=True, kw_only=True):
    """A format that a dump may have on disk."""

    name: str
    says: str
    patterns: tuple[str, ...]  # its file names in a folder: "*.parquet"
    detect: Callable[[Peek], bool]  # whether a (non-empty) file has this format
    # Yields the rows of all files, a few MB at a time, in bounded memory. None: read in place.
    read: Callable[[Dump], Iterator[Rows]] | None
    # Names of small companion files in the same folder: "meta.json".
    beside: tuple[str, ...] = ()
    source: str = ""  # URL of a page or file that documents what its writer writes
    order: Callable[[Any], Any] = natural_order  # the key by which its files are sorted
    # Whether columns may have any names, which are matched when the table is opened, as in parquet.
    # Such formats are tried last when a file's format is detected.
    any_names: bool = False
    # For the files of a folder: a file that its writer marked as complete but that is missing.
    lost: Callable[[Sequence[Path]], Path | None] = lambda files: None
    # For formats without token ids: the trainer's option that dumps token ids and log-probs.
    text_only: str = ""
    # Whether rows of one prompt are consecutive, `group_size` at a time.
    grouped_by_order: bool = False
    # Given values that the reader uses itself, besides those that hold for all rows.
    asks_for: tuple[str, ...] = ()

    def entry(self) -> Entry:
        """Describe the format: what writes it, and the names of its files."""
        return Entry(
            what=self.says,
            example=f"names in a folder: {', '.join(self.patterns)}",
            links={"what writes it": self.source} if self.source else {},
        )
