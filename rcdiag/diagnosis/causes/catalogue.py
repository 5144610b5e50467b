"""All causes that rcdiag brings, in the order in which they are weighed."""

from __future__ import annotations

from rcdiag.diagnosis.causes.alignment import ALIGNMENT
from rcdiag.diagnosis.causes.cause import CAUSES
from rcdiag.diagnosis.causes.context import CONTEXT
from rcdiag.diagnosis.causes.difference import DIFFERENCE
from rcdiag.diagnosis.causes.recorded_laws import SAMPLING
from rcdiag.diagnosis.causes.recording import RECORDING
from rcdiag.diagnosis.causes.sampled_tokens import SAMPLED_TOKENS
from rcdiag.diagnosis.causes.storage import STORAGE

__all__ = ["CAUSES"]

CAUSES.ship((*STORAGE, *RECORDING, *ALIGNMENT, *SAMPLED_TOKENS, *SAMPLING, *CONTEXT, *DIFFERENCE))
