"""The glossary explains every name in a result: `explain(name)` answers, `names()` lists.

Entries come from the definitions: the registries of metrics, checks, trainers, losses, engines,
formats and figures, and the descriptions on the fields of results. Terms without a definition are
described in `words.toml`. There is one small module for each group of kinds of names.
"""

from __future__ import annotations

from rcdiag.entry import Entry
from rcdiag.glossary.lookup import explain, find, headings, names

__all__ = ["Entry", "explain", "find", "headings", "names"]
