"""The estimators that the recommendation chooses among. To add one: one line in CANDIDATES."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.apply import token_effects
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import Tokens
from rcdiag.corrections.sequences import Rows
from rcdiag.usecases.sweep.families import FAMILIES, Bounds

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Named:
    """A family with its bounds, and how simple it is: 0 is the simplest."""

    family: str  # "none": no correction
    bounds: Bounds
    complexity: int

    @property
    def correction(self) -> Correction:
        if self.family == "none":
            return Correction()
        return FAMILIES[self.family].correction(self.bounds)


# none < token TIS < token MIS < geometric and k3 rejection < sequence TIS < sequence MIS < pairs.
# The order is rcdiag's proposal.
_GEO = {"rs_lower": 0.99, "rs_upper": 1.01}
_NARROW = {"rs_lower": 0.999, "rs_upper": 1.001}
CANDIDATES: dict[str, Named] = {
    "none": Named("none", {}, 0),
    "token_tis_2": Named("token_tis", {"upper": 2.0}, 1),
    "token_tis_5": Named("token_tis", {"upper": 5.0}, 1),
    "token_icepop_0.5_5": Named("token_icepop", {"lower": 0.5, "upper": 5.0}, 2),
    "token_icepop_0.5_2": Named("token_icepop", {"lower": 0.5, "upper": 2.0}, 2),
    "token_mis_0.5_2": Named("token_mis", {"lower": 0.5, "upper": 2.0}, 2),
    "geo_rs_0.999_1.001": Named("geo_rs", {"lower": 0.999, "upper": 1.001}, 3),
    "geo_rs_0.99_1.01": Named("geo_rs", {"lower": 0.99, "upper": 1.01}, 3),
    "k3_rs_0.01": Named("seq_mean_k3", {"upper": 0.01}, 3),
    "seq_tis_2": Named("seq_tis", {"upper": 2.0}, 4),
    "seq_tis_5": Named("seq_tis", {"upper": 5.0}, 4),
    "seq_tis_10": Named("seq_tis", {"upper": 10.0}, 4),
    "seq_mis_0.5_2": Named("seq_mis", {"lower": 0.5, "upper": 2.0}, 5),
    "geo_rs_0.999_1.001_token_tis_2": Named("geo_rs_token_tis", {**_NARROW, "is_upper": 2.0}, 6),
    "geo_rs_0.99_1.01_token_tis_2": Named("geo_rs_token_tis", {**_GEO, "is_upper": 2.0}, 6),
    "geo_rs_0.99_1.01_seq_tis_2": Named("geo_rs_seq_tis", {**_GEO, "is_upper": 2.0}, 6),
    "k3_rs_0.01_token_tis_2": Named("k3_rs_token_tis", {"rs_upper": 0.01, "is_upper": 2.0}, 6),
    "k3_rs_0.01_seq_tis_2": Named("k3_rs_seq_tis", {"rs_upper": 0.01, "is_upper": 2.0}, 6),
}


def final_weights(correction: Correction, tokens: Tokens, rows: Rows) -> Array:
    """The weight of every token in the loss, 0 where it is rejected; [tokens]."""
    effects = token_effects(correction, tokens, rows)
    weights = np.ones(rows.tokens) if effects.weights is None else effects.weights
    return np.where(effects.kept, weights, 0.0)
