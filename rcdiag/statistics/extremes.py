"""The tokens that stand out: the largest log-ratios, and values that are no numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rcdiag.pair import PolicyPair
from rcdiag.trajectories import Trajectories

WORST = 20
ROWS_NAMED = 10


@dataclass
class WorstTokens:
    """The WORST tokens by |log_ratio|, largest first; ties by row and position."""

    found: list[tuple[float, int, int, int, float, float]] = field(default_factory=list)

    def add(self, trajectories: Trajectories, pair: PolicyPair) -> None:
        size = np.abs(pair.log_ratio)
        size = np.where(np.isnan(size), -np.inf, size)
        # Stable, so that ties go to the first rows however the table is cut into batches.
        least = np.partition(size, -WORST)[-WORST] if len(size) > WORST else -np.inf
        among = np.flatnonzero(size >= least)
        best = among[np.argsort(-size[among], kind="stable")[:WORST]]
        places = np.flatnonzero(trajectories.mask)[best]
        offsets = trajectories.response_ids.offsets
        rows = np.searchsorted(offsets, places, side="right") - 1
        for token, place, row in zip(best, places, rows, strict=True):
            entry = (
                -float(size[token]),
                trajectories.first_row + int(row),
                int(place - offsets[row]),
                int(trajectories.response_ids.values[place]),
                float(pair.behavior_log_probs[token]),
                float(pair.target_log_probs[token]),
            )
            self.found.append(entry)
        self.found = sorted(self.found)[:WORST]

    def to_list(self) -> list[dict[str, Any]]:
        names = ("row", "position", "token_id", "behavior_log_prob", "target_log_prob")
        return [
            {**dict(zip(names, entry[1:], strict=True)), "log_ratio": entry[5] - entry[4]}
            for entry in self.found
        ]


@dataclass
class NonFinite:
    """How many unmasked log-probs of each policy are NaN or infinite, and in which rows."""

    tokens: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    first_rows: dict[str, list[int]] = field(default_factory=dict)

    def add(self, trajectories: Trajectories, policies: Sequence[str]) -> None:
        for policy in policies:
            bad = trajectories.mask & ~np.isfinite(trajectories.log_probs[policy])
            if not bad.any():
                continue
            places = np.flatnonzero(bad)
            rows = np.searchsorted(trajectories.response_ids.offsets, places, side="right") - 1
            rows = np.unique(rows) + trajectories.first_row
            self.tokens[policy] = self.tokens.get(policy, 0) + len(places)
            self.rows[policy] = self.rows.get(policy, 0) + len(rows)
            named = self.first_rows.setdefault(policy, [])
            named.extend(int(row) for row in rows[: ROWS_NAMED - len(named)])
