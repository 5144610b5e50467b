"""The glossary says what every name in a result means: `explain(name)` answers, `names()` lists.

Entries are read off the definitions: the registries of metrics, checks, trainers, losses, engines,
formats and figures, and the words on the fields of results. Only terms of the field that are no
definition have their words here (`words`). There is one small module for each kind of names.
"""

from __future__ import annotations

from rcdiag.entry import Entry
from rcdiag.glossary.lookup import explain, find, headings, names

__all__ = ["Entry", "explain", "find", "headings", "names"]
