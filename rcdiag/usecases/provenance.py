"""Where a result comes from: what every result document says about itself."""

from __future__ import annotations

import importlib.metadata
import shlex
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

from rcdiag.errors import without_secrets
from rcdiag.table.table import Table

LIBRARIES = ("rcdiag", "numpy", "scipy", "pyarrow", "polars")


def provenance(dump: Table, seed: int) -> dict[str, Any]:
    """Command line, versions, table, fingerprint, seed, time; of drawn rows how many they are.

    `columns_read_as` maps rcdiag's names to those in the files, where columns have others there.
    """
    source = dump.drawn_from or dump
    names = {**source.naming.taken, **source.renames}
    drawn = {} if dump.drawn_from is None else {"rows_drawn": dump.num_rows}
    return {
        "command": without_secrets(shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])),
        "versions": dict(_versions()),
        "dump": [file.name for file in source.sources],
        "rows": source.num_rows,
        **drawn,
        **({"columns_read_as": names} if names else {}),
        "fingerprint": dump.fingerprint,
        "seed": seed,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


@cache
def _versions() -> dict[str, str]:
    """Return the installed versions of the libraries that compute."""
    return {name: importlib.metadata.version(name) for name in LIBRARIES}
