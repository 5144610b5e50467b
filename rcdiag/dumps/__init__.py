"""Files <-> trajectories. pyarrow and polars live here and nowhere else.

To add a column to the contract: one line in `schema.COLUMNS`.
"""

from rcdiag.dumps.reader import Dump, open_dump
from rcdiag.dumps.writer import TableWriter

__all__ = ["Dump", "TableWriter", "open_dump"]
