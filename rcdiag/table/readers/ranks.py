"""Trainers that write a file for each rank leave a hole where a rank's file is not there."""

from __future__ import annotations

from collections.abc import Mapping, Set

from rcdiag.table.readers.reader import Notes

MISSING = "step {step} has no file of rank {ranks}, which another step has: rows may be missing"


def note_missing(ranks: Mapping[int, Set[int]], notes: Notes) -> None:
    """Note each step without the file of a rank that another step has; `ranks` are by step."""
    everywhere = set().union(*ranks.values())
    for step, having in sorted(ranks.items()):
        if lacking := sorted(everywhere - having):
            named = ", ".join(map(str, lacking[:8])) + (" ..." if len(lacking) > 8 else "")
            notes.change(MISSING.format(step=step, ranks=named))
