"""All causes that rcdiag brings, in the order in which they are weighed."""

from __future__ import annotations

from rcdiag.diagnosis.causes.alignment import ALIGNMENT
from rcdiag.diagnosis.causes.blocks import BLOCK_BOUNDARIES
from rcdiag.diagnosis.causes.cause import CAUSES, one_of, shipped
from rcdiag.diagnosis.causes.context import CONTEXT
from rcdiag.diagnosis.causes.difference import DIFFERENCE
from rcdiag.diagnosis.causes.duplicated_rows import DUPLICATED_ROWS
from rcdiag.diagnosis.causes.kept_sets import KEPT_SETS, banned
from rcdiag.diagnosis.causes.outlier_prompts import OUTLIER_PROMPTS
from rcdiag.diagnosis.causes.penalties import PENALTIES, pushed
from rcdiag.diagnosis.causes.placeholders import NAN_LOG_PROBS, SENTINEL, ZERO_PLACEHOLDER
from rcdiag.diagnosis.causes.recording import RECORDING
from rcdiag.diagnosis.causes.sampled_tokens import MASK_INCLUDES_TOOL, SAMPLED_TOKENS
from rcdiag.diagnosis.causes.stored_precision import FLOOR_CLIP, STORED_PRECISION
from rcdiag.diagnosis.causes.temperatures import TEMPERATURES
from rcdiag.diagnosis.causes.trainer_pair import TRAINER_PAIR
from rcdiag.diagnosis.causes.transformed_values import TRANSFORMED_VALUES
from rcdiag.diagnosis.causes.turn_boundaries import TURN_BOUNDARY
from rcdiag.diagnosis.causes.unlogged_sampling import UNLOGGED_SAMPLING
from rcdiag.diagnosis.causes.vocabulary import VOCABULARY

__all__ = ["CAUSES"]

LOGIT_BIAS = shipped(
    "logit-bias",
    "distribution",
    lambda features: one_of("logit-bias", banned)(features) or pushed(features),
)
# Of causes with the same score the first is named: a wrong block of ids goes before a logit bias.
SAMPLING = (*TEMPERATURES, *KEPT_SETS, *VOCABULARY, LOGIT_BIAS, *PENALTIES, *UNLOGGED_SAMPLING)
# Storage: the stored values are not the computed ones. Rows that repeat are counted once before
# equal values are counted, as in a sentinel or a floor. Zeros in the text of tools are a fault of
# the mask, which is weighed before placeholders.
STORAGE = (
    NAN_LOG_PROBS,
    *TRANSFORMED_VALUES,
    DUPLICATED_ROWS,
    SENTINEL,
    FLOOR_CLIP,
    MASK_INCLUDES_TOOL,
    ZERO_PLACEHOLDER,
    *STORED_PRECISION,
)

CAUSES.ship(
    (
        *STORAGE,
        *RECORDING,
        TURN_BOUNDARY,
        *ALIGNMENT,
        *SAMPLED_TOKENS,
        *SAMPLING,
        *CONTEXT,
        OUTLIER_PROMPTS,
        BLOCK_BOUNDARIES,
        *TRAINER_PAIR,
        *DIFFERENCE,
    )
)
