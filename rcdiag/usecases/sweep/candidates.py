"""The estimators that the recommendation chooses among. To add one: one line in CANDIDATES."""

from __future__ import annotations

from dataclasses import dataclass

from rcdiag.corrections.correction import Correction
from rcdiag.usecases.sweep.families import FAMILIES, Bounds


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a family, and how simple it is: 0 is the simplest."""

    family: str  # "none": no correction
    bounds: Bounds
    complexity: int

    @property
    def correction(self) -> Correction:
        """The correction that the setting stands for; none without a family."""
        if self.family == "none":
            return Correction()
        return FAMILIES[self.family].correction(self.bounds)


# none < token TIS < token MIS < geometric and k3 rejection < sequence TIS < sequence MIS < pairs.
# The order is rcdiag's proposal.
_GEO = {"rs_lower": 0.99, "rs_upper": 1.01}
_NARROW = {"rs_lower": 0.999, "rs_upper": 1.001}
CANDIDATES: dict[str, Setting] = {
    "none": Setting("none", {}, 0),
    "token_tis_2": Setting("token_tis", {"upper": 2.0}, 1),
    "token_tis_5": Setting("token_tis", {"upper": 5.0}, 1),
    "token_icepop_0.5_5": Setting("token_icepop", {"lower": 0.5, "upper": 5.0}, 2),
    "token_icepop_0.5_2": Setting("token_icepop", {"lower": 0.5, "upper": 2.0}, 2),
    "token_mis_0.5_2": Setting("token_mis", {"lower": 0.5, "upper": 2.0}, 2),
    "geo_rs_0.999_1.001": Setting("geo_rs", {"lower": 0.999, "upper": 1.001}, 3),
    "geo_rs_0.99_1.01": Setting("geo_rs", {"lower": 0.99, "upper": 1.01}, 3),
    "k3_rs_0.01": Setting("seq_mean_k3", {"upper": 0.01}, 3),
    "seq_tis_2": Setting("seq_tis", {"upper": 2.0}, 4),
    "seq_tis_5": Setting("seq_tis", {"upper": 5.0}, 4),
    "seq_tis_10": Setting("seq_tis", {"upper": 10.0}, 4),
    "seq_mis_0.5_2": Setting("seq_mis", {"lower": 0.5, "upper": 2.0}, 5),
    "geo_rs_0.999_1.001_token_tis_2": Setting("geo_rs_token_tis", {**_NARROW, "is_upper": 2.0}, 6),
    "geo_rs_0.99_1.01_token_tis_2": Setting("geo_rs_token_tis", {**_GEO, "is_upper": 2.0}, 6),
    "geo_rs_0.99_1.01_seq_tis_2": Setting("geo_rs_seq_tis", {**_GEO, "is_upper": 2.0}, 6),
    "k3_rs_0.01_token_tis_2": Setting("k3_rs_token_tis", {"rs_upper": 0.01, "is_upper": 2.0}, 6),
    "k3_rs_0.01_seq_tis_2": Setting("k3_rs_seq_tis", {"rs_upper": 0.01, "is_upper": 2.0}, 6),
}
