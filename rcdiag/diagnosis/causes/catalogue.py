"""All causes that rcdiag brings, in the order in which they are weighed."""

from __future__ import annotations

from rcdiag.diagnosis.causes.alignment import ALIGNMENT
from rcdiag.diagnosis.causes.cause import CAUSES, shipped
from rcdiag.diagnosis.causes.context import CONTEXT
from rcdiag.diagnosis.causes.difference import DIFFERENCE
from rcdiag.diagnosis.causes.kept_sets import KEPT_SETS, banned
from rcdiag.diagnosis.causes.penalties import PENALTIES, pushed
from rcdiag.diagnosis.causes.recording import RECORDING
from rcdiag.diagnosis.causes.sampled_tokens import SAMPLED_TOKENS
from rcdiag.diagnosis.causes.silent_laws import SILENT_LAWS
from rcdiag.diagnosis.causes.storage import STORAGE
from rcdiag.diagnosis.causes.temperatures import TEMPERATURES
from rcdiag.diagnosis.causes.vocabulary import VOCABULARY

__all__ = ["CAUSES"]

LOGIT_BIAS = shipped(
    "logit-bias", "law", lambda signs: banned("logit-bias")(signs) or pushed(signs)
)
SAMPLING = (*TEMPERATURES, *KEPT_SETS, LOGIT_BIAS, *PENALTIES, *VOCABULARY, *SILENT_LAWS)

CAUSES.ship((*STORAGE, *RECORDING, *ALIGNMENT, *SAMPLED_TOKENS, *SAMPLING, *CONTEXT, *DIFFERENCE))
