"""Causes say what went wrong in a run; each is a hypothesis that a table speaks for or against.

To add a cause: a `Cause` in the tuple of its file, with its words in `words/`, or
`CAUSES.add(Cause(...))` from outside.
"""

from __future__ import annotations

from rcdiag.diagnosis.causes.alignment import ALIGNMENT
from rcdiag.diagnosis.causes.cause import CAUSES, STAGES, Cause, Suspicion
from rcdiag.diagnosis.causes.difference import DIFFERENCE
from rcdiag.diagnosis.causes.recording import RECORDING
from rcdiag.diagnosis.causes.sampling import SAMPLING
from rcdiag.diagnosis.causes.storage import STORAGE

__all__ = ["CAUSES", "STAGES", "Cause", "Suspicion"]

CAUSES.ship((*STORAGE, *RECORDING, *ALIGNMENT, *SAMPLING, *DIFFERENCE))
