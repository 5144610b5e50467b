"""What is read off the sums: a row per setting."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.results.sweep import SweepRow
from rcdiag.sweeping.formulas import Estimates, Formulas
from rcdiag.sweeping.grids import Bounds
from rcdiag.sweeping.groups import union_of_groups
from rcdiag.sweeping.keyed import Array
from rcdiag.sweeping.lengths import by_quartile
from rcdiag.sweeping.state import SweepState

GroupCounts = dict[str, NDArray[np.int64]]


def sweep_rows(
    state: SweepState, family: str, settings: list[Bounds], groups: GroupCounts
) -> list[SweepRow]:
    """The rows of a family, in the order of its settings; `groups` are its `kept_groups`."""
    with np.errstate(all="ignore"):
        return _rows(Formulas(state, family), settings, groups[family])


def kept_groups(state: SweepState) -> GroupCounts:
    """Groups with two kept sequences, by family; under "" those that have two."""
    if not state.groups:
        counts = np.zeros(state.width, np.int64)
    else:
        counts = union_of_groups(state.groups).kept(state.width)
    found, start = {"": counts[:1]}, 1
    for name, each in state.settings.items():
        found[name] = counts[start : start + each.count]
        start += each.count
    return found


def _rows(of: Formulas, settings: list[Bounds], groups: NDArray[np.int64]) -> list[SweepRow]:
    """Everything about each setting."""
    tokens, sequences = of.base["tokens"], of.base["sequences"]
    kept, lives = of.column("kept"), of.column("alive")
    values = {
        "kept_token_share": of.ratio(kept, tokens).as_share(),
        "kept_sequence_share": of.ratio(lives, sequences).as_share(),
        "ess_seq": of.ess_seq(),
        "mean_weight": of.ratio(of.weights(), tokens),
        "lost_mass": of.lost_mass().as_share(),
        "truncation_loss": of.truncation_loss().as_share(),
        "reward_shift": of.shift("reward"),
        "advantage_shift": of.shift("advantage"),
    }
    plain = {
        "ess_token": of.ess_token(),
        "ess_trainer": of.ess_trainer(),
        "variance": of.variance(),
        "bias": of.bias(),
        "bias_bound": of.bias_bound(),
        "keep_length_correlation": of.keep_length_correlation(),
    }
    quartiles = by_quartile(of.state, of.sums.lengths)
    clamped = of.clamped_share()
    return [
        SweepRow(
            bounds=bounds,
            kept_tokens=int(kept[:, at].sum()),
            kept_sequences=int(lives[:, at].sum()),
            kept_groups=int(groups[at]),
            kept_by_length=[float(share) for share in quartiles[:, at]],
            clamped_share=clamped,
            **_at(values, plain, at),
        )
        for at, bounds in enumerate(settings)
    ]


def _at(values: dict[str, Estimates], plain: dict[str, Array], at: int) -> dict[str, Any]:
    """The numbers of one setting."""
    found: dict[str, Any] = {name: each.metric(at) for name, each in values.items()}
    return found | {name: _number(each[at]) for name, each in plain.items()}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
