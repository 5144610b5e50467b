"""The estimators that the recommendation chooses among. To add one: one line in CANDIDATES.

A user's own threshold of any family is a candidate too: its name says family and bounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from rcdiag.corrections.correction import Correction
from rcdiag.corrections.describe import describe
from rcdiag.entry import Entry
from rcdiag.errors import RcdiagError, did_you_mean, setting
from rcdiag.usecases.sweep.estimator_families import FAMILIES, Bounds, bounds_text


class EstimatorSetting(Struct, frozen=True):
    """One setting of a family, with its complexity: 0 is the simplest."""

    family: str  # "none": no correction
    bounds: Bounds
    complexity: int

    @property
    def correction(self) -> Correction:
        """Return the correction of this setting; for `none` one that does nothing."""
        if self.family == "none":
            return Correction()
        return FAMILIES[self.family].correction(self.bounds)

    @property
    def says(self) -> str:
        """Return what the setting does to weights and loss mask."""
        if self.family == "none":
            return "No correction: all tokens stay, with weight 1."
        return f"{describe(self.correction)}."

    def entry(self, name: str) -> Entry:
        """Return what the candidate of this name does, and its complexity."""
        most = max(other.complexity for other in CANDIDATES.values())
        of = () if self.family == "none" else (self.family,)
        return Entry(
            what=f"{self.says} Of the family {self.family}, with {bounds_text(self.bounds)}; its "
            f"complexity is {self.complexity}, from 0 (no correction) to {most}.",
            direction="ratio = target / behavior probability",
            example=f"rcdiag sweep rollouts.parquet --emit verl --candidate {name}",
            see=(*of, "efficiency", "refused", "indistinguishable"),
        )


# none < token TIS < token MIS < geometric and k3 rejection < sequence TIS < sequence MIS < pairs.
# The order is rcdiag's proposal.
_GEO = {"rs_lower": 0.99, "rs_upper": 1.01}
_NARROW = {"rs_lower": 0.999, "rs_upper": 1.001}
CANDIDATES: dict[str, EstimatorSetting] = {
    "none": EstimatorSetting("none", {}, 0),
    "token_tis_2": EstimatorSetting("token_tis", {"upper": 2.0}, 1),
    "token_tis_5": EstimatorSetting("token_tis", {"upper": 5.0}, 1),
    "token_icepop_0.5_5": EstimatorSetting("token_icepop", {"lower": 0.5, "upper": 5.0}, 2),
    "token_icepop_0.5_2": EstimatorSetting("token_icepop", {"lower": 0.5, "upper": 2.0}, 2),
    "token_mis_0.5_2": EstimatorSetting("token_mis", {"lower": 0.5, "upper": 2.0}, 2),
    "geo_rs_0.999_1.001": EstimatorSetting("geo_rs", {"lower": 0.999, "upper": 1.001}, 3),
    "geo_rs_0.99_1.01": EstimatorSetting("geo_rs", {"lower": 0.99, "upper": 1.01}, 3),
    "k3_rs_0.01": EstimatorSetting("seq_mean_k3", {"upper": 0.01}, 3),
    "seq_tis_2": EstimatorSetting("seq_tis", {"upper": 2.0}, 4),
    "seq_tis_5": EstimatorSetting("seq_tis", {"upper": 5.0}, 4),
    "seq_tis_10": EstimatorSetting("seq_tis", {"upper": 10.0}, 4),
    "seq_mis_0.5_2": EstimatorSetting("seq_mis", {"lower": 0.5, "upper": 2.0}, 5),
    "geo_rs_0.999_1.001_token_tis_2": EstimatorSetting(
        "geo_rs_token_tis", {**_NARROW, "is_upper": 2.0}, 6
    ),
    "geo_rs_0.99_1.01_token_tis_2": EstimatorSetting(
        "geo_rs_token_tis", {**_GEO, "is_upper": 2.0}, 6
    ),
    "geo_rs_0.99_1.01_seq_tis_2": EstimatorSetting("geo_rs_seq_tis", {**_GEO, "is_upper": 2.0}, 6),
    "k3_rs_0.01_token_tis_2": EstimatorSetting(
        "k3_rs_token_tis", {"rs_upper": 0.01, "is_upper": 2.0}, 6
    ),
    "k3_rs_0.01_seq_tis_2": EstimatorSetting(
        "k3_rs_seq_tis", {"rs_upper": 0.01, "is_upper": 2.0}, 6
    ),
}

# Short name of a family in candidates -> the family's name.
_SHORT = {"k3_rs": "seq_mean_k3"}
_COMPLEXITY = {
    **{candidate.family: candidate.complexity for candidate in CANDIDATES.values()},
    "token_rs": 2,
    "seq_icepop": 5,
    "seq_rs": 5,
}
_REJECTION = 3  # complexity of all other families, which only reject
_THRESHOLD = re.compile(r"\d[\d.]*(e[+-]?\d+)?")


def find_candidate(name: str) -> EstimatorSetting:
    """Return the setting of a candidate: one of CANDIDATES, or any family with thresholds.

    `seq_tis_3` is the family seq_tis with the upper bound 3; several bounds are in the order in
    which the rows of the family name them: `token_icepop_0.4_3`.
    """
    if name in CANDIDATES:
        return CANDIDATES[name]
    parts = name.split("_")
    family = "_".join(part for part in parts if not _THRESHOLD.fullmatch(part))
    family = _SHORT.get(family, family)
    if family not in FAMILIES:
        raise RcdiagError(
            f"{setting('candidate', name)}: no such candidate",
            hint=f"{did_you_mean(name, CANDIDATES)}one of {', '.join(CANDIDATES)}; "
            f"or FAMILY_THRESHOLD of {', '.join(FAMILIES)}",
        )
    try:
        values = [float(part) for part in parts if _THRESHOLD.fullmatch(part)]
    except ValueError:  # 1.2.3
        values = []
    names = list(FAMILIES[family].grid(2)[0])
    bounds = dict(zip(names, values, strict=False))
    ascending = all(
        value < bounds.get(bound.replace("lower", "upper"), float("inf"))
        for bound, value in bounds.items()
        if bound.endswith("lower")
    )
    if len(values) != len(names) or min(values) <= 0.0 or not ascending:
        wanted = "_".join(bound.upper() for bound in names)
        raise RcdiagError(
            f"{setting('candidate', name)}: {FAMILIES[family].title} needs {len(names)} "
            f"{'bound' if len(names) == 1 else 'bounds in ascending order'}, above 0",
            hint=f"{family}_{wanted}, as numbers",
        )
    return EstimatorSetting(family, bounds, _COMPLEXITY.get(family, _REJECTION))


def candidates_with(own: Iterable[str]) -> dict[str, EstimatorSetting]:
    """Return all candidates, followed by the user's own ones.

    One that is among CANDIDATES under another spelling is not repeated.
    """
    known = list(CANDIDATES.values())
    added = {name: find_candidate(name) for name in own if name not in CANDIDATES}
    return {**CANDIDATES, **{name: it for name, it in added.items() if it not in known}}
