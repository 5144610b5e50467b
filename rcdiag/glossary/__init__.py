"""What every name in a result means: `explain(name)`, and `names()` for the list of them.

Entries come from the registries of metrics, profiles and trainers and from the words on the fields
of results, with what those leave unsaid in hand-written dicts: one small module per kind of names,
`keys/` for what trainers log.
"""

from __future__ import annotations

from rcdiag.glossary.entry import Entry
from rcdiag.glossary.lookup import explain, headings, names

__all__ = ["Entry", "explain", "headings", "names"]
