"""Causes in the law of sampling: what was recorded is not what the tokens were drawn from."""

from __future__ import annotations

from rcdiag.diagnosis.causes.cause import shipped
from rcdiag.diagnosis.causes.kept_sets import KEPT_SETS, banned
from rcdiag.diagnosis.causes.penalties import PENALTIES, pushed
from rcdiag.diagnosis.causes.silent_laws import SILENT_LAWS
from rcdiag.diagnosis.causes.temperatures import TEMPERATURES
from rcdiag.diagnosis.causes.vocabulary import VOCABULARY

SAMPLING = (
    *TEMPERATURES,
    *KEPT_SETS,
    shipped("logit-bias", "law", lambda signs: banned("logit-bias")(signs) or pushed(signs)),
    *PENALTIES,
    *VOCABULARY,
    *SILENT_LAWS,
)
