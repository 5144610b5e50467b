"""All experiments by name.

`EXPERIMENTS.add(Experiment(...))` adds one.
"""

from __future__ import annotations

from rcdiag.diagnosis.experiments.contexts import CONTEXTS
from rcdiag.diagnosis.experiments.experiment import Experiment
from rcdiag.diagnosis.experiments.functions import FUNCTIONS
from rcdiag.diagnosis.experiments.kept_sets import KEPT_SETS
from rcdiag.diagnosis.experiments.output_layer import (
    PADDING_ROWS,
    ROUNDED_LOGITS,
    SOFTCAP,
    VOCABULARY_SHARDS,
)
from rcdiag.diagnosis.experiments.penalties import BIASES, MIN_TOKENS, PENALTIES
from rcdiag.diagnosis.experiments.recorded import (
    DIVIDED,
    NOT_SHIFTED,
    OTHER_ROWS,
    QUANTITIES,
    SHIFTS,
    TOKEN_IDS,
)
from rcdiag.diagnosis.experiments.weights import WEIGHTS
from rcdiag.registry import Registry

EXPERIMENTS: Registry[Experiment] = Registry(
    "experiment",
    (
        *(QUANTITIES, DIVIDED, SHIFTS, TOKEN_IDS, OTHER_ROWS),
        *(KEPT_SETS, PENALTIES, BIASES, MIN_TOKENS),
        *(SOFTCAP, ROUNDED_LOGITS, PADDING_ROWS, VOCABULARY_SHARDS),
        NOT_SHIFTED,
        *CONTEXTS,
        *FUNCTIONS,
        *WEIGHTS,
    ),
)
