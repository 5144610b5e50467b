"""What stands out: tokens and sequences with the largest log-ratios, values that are no numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rcdiag.results import SequenceTokens, WorstToken
from rcdiag.segments import segment_sum
from rcdiag.statistics.block import Block
from rcdiag.trajectories import Trajectories

WORST = 20
WORST_SEQUENCES = 10
# Of a long sequence so many tokens are kept.
TOKENS_KEPT = 400
ROWS_NAMED = 10


@dataclass
class WorstTokens:
    """The WORST tokens by |log_ratio|, largest first; ties by row and position."""

    found: list[tuple[float, int, int, int, float, float]] = field(default_factory=list)

    def add(self, block: Block) -> None:
        size = np.abs(block.values.ratios.log_ratio)
        least = -self.found[-1][0] if len(self.found) == WORST else 0.0
        if len(size) > WORST and len(self.found) < WORST:
            least = np.partition(np.where(np.isnan(size), 0.0, size), -WORST)[-WORST]
        # NaN is in no comparison.
        among = np.flatnonzero(size >= least)
        best = among[np.argsort(-size[among], kind="stable")[:WORST]]
        rows = block.row[np.searchsorted(np.cumsum(block.lengths), best, side="right")]
        for token, row in zip(best, rows, strict=True):
            entry = (
                -float(size[token]),
                int(row),
                int(block.position[token]),
                int(block.token_id[token]),
                float(block.values.behavior[token]),
                float(block.values.target[token]),
            )
            self.found.append(entry)
        self.found = sorted(self.found)[:WORST]

    def merge(self, other: WorstTokens) -> None:
        self.found = sorted([*self.found, *other.found])[:WORST]

    def to_list(self) -> list[WorstToken]:
        """Return the tokens as result documents hold them."""
        return [
            WorstToken(
                row=row,
                position=position,
                token_id=token_id,
                behavior_log_prob=behavior,
                target_log_prob=target,
                log_ratio=target - behavior,
            )
            for _, row, position, token_id, behavior, target in self.found
        ]


@dataclass
class WorstSequences:
    """The sequences with the largest |sum log_ratio|, largest first; ties by row."""

    found: list[SequenceTokens] = field(default_factory=list)

    def add(self, block: Block) -> None:
        with np.errstate(invalid="ignore"):
            sums = np.abs(segment_sum(block.values.ratios.log_ratio, block.lengths))
        least = abs(self.found[-1].log_ratio_sum) if len(self.found) == WORST_SEQUENCES else -1.0
        among = np.flatnonzero(sums >= least)
        best = among[np.argsort(-sums[among], kind="stable")[:WORST_SEQUENCES]]
        self._keep([_sequence(block, int(index)) for index in best])

    def merge(self, other: WorstSequences) -> None:
        self._keep(other.found)

    def _keep(self, more: list[SequenceTokens]) -> None:
        found = [*self.found, *more]
        found.sort(key=lambda each: (-abs(each.log_ratio_sum), each.row))
        self.found = found[:WORST_SEQUENCES]


def _sequence(block: Block, index: int) -> SequenceTokens:
    end = int(block.lengths[: index + 1].sum())
    start = end - int(block.lengths[index])
    kept = slice(start, min(end, start + TOKENS_KEPT))
    log_ratio = block.values.ratios.log_ratio
    reward = None if block.reward is None else float(block.reward[index])
    return SequenceTokens(
        row=int(block.row[index]),
        sample_id=None if block.sample_id is None else block.sample_id[index],
        step=None if block.step is None else int(block.step[index]),
        reward=None if reward is None or np.isnan(reward) else reward,
        length=end - start,
        log_ratio_sum=float(log_ratio[start:end].sum()),
        positions=block.position[kept].tolist(),
        token_ids=block.token_id[kept].tolist(),
        log_ratio=[round(value, 6) for value in log_ratio[kept].tolist()],
    )


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
