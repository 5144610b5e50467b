"""miles writes slime's debug dumps, a train file for each rank, and a parquet for its dashboard."""

from __future__ import annotations

from rcdiag.table.readers.slime import dump_reader, of_miles

MILES = dump_reader(
    "miles",
    "miles' debug dumps (--dump-details): rollout files, train files of all ranks, the "
    "dashboard's parquet, or a folder of them.",
    of_miles,
    "https://github.com/radixark/miles/blob/main/miles/utils/train_dump_utils.py",
)
