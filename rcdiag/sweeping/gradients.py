"""Sketches of weighted gradients by cluster, for every candidate and for the reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from rcdiag.corrections.config import Correction
from rcdiag.corrections.outcome import quantities_of
from rcdiag.corrections.quantities import K, LogRatio, Quantity, Tokens
from rcdiag.corrections.rows import rows_of
from rcdiag.segments import segment_sum
from rcdiag.statistics.block import Block
from rcdiag.statistics.pareto import Largest, union_of_largest
from rcdiag.sweeping.baseline import Baseline, advantages
from rcdiag.sweeping.candidates import final_weights
from rcdiag.sweeping.keyed import Array, Keyed
from rcdiag.sweeping.sketch import DIMENSIONS, buckets, reference_ratio, sketches

REFERENCE = "reference"


@dataclass
class Gradients:
    """The tails of weight times |advantage|; the sums themselves are held with the clusters."""

    tails: dict[str, Largest] = field(default_factory=dict)

    def add(
        self,
        block: Block,
        plans: Mapping[str, Correction],
        baseline: Baseline | None,
        keyed: Keyed,
    ) -> None:
        """Take in the sequences of a block; sums by cluster go to `keyed`."""
        if not plans:
            return
        advantage = advantages(block, baseline)
        signal = np.nan_to_num(advantage, nan=0.0)
        size = np.where(np.isnan(advantage), 1.0, np.abs(advantage))
        bucket, sign = buckets(block.token_id)
        owner = np.repeat(np.arange(len(block.lengths)), block.lengths)
        cells = owner * DIMENSIONS + bucket
        slope = sign * block.values.target_miss * np.repeat(signal, block.lengths)
        log_ratio = block.values.ratios.log_ratio
        tokens, rows = Tokens(log_ratio), rows_of(block, _quantities(plans.values()), 0)
        true = np.exp(segment_sum(log_ratio, block.lengths))
        keys, index = keyed.place(block.cluster)

        def add_up(name: str, column: str, values: Array) -> None:
            sums = np.zeros((len(keys), *values.shape[1:]))
            np.add.at(sums, index, values)
            keyed.add(keys, (name, column), sums)

        plain = sketches(cells, slope, len(rows))
        reference = reference_ratio(log_ratio, block.lengths)
        add_up(REFERENCE, "gradient", plain * reference[:, None])
        add_up(REFERENCE, "signals", (~np.isnan(advantage)).astype(np.float64))
        for name, correction in plans.items():
            weights = final_weights(correction, tokens, rows)
            means = segment_sum(weights, block.lengths) / block.lengths
            add_up(name, "gradient", sketches(cells, slope * weights, len(rows)))
            add_up(name, "over", np.maximum(means - true, 0.0))
            self._add_tail(name, means * size)

    def _add_tail(self, name: str, sizes: Array) -> None:
        self.tails.setdefault(name, Largest()).add(np.log(sizes[sizes > 0.0]))

    def merge(self, other: Gradients) -> None:
        for name, tail in other.tails.items():
            mine = self.tails.get(name)
            self.tails[name] = tail if mine is None else union_of_largest([mine, tail])


def _quantities(corrections: Iterable[Correction]) -> list[Quantity]:
    found: dict[Quantity, None] = dict.fromkeys([LogRatio(), K("k2"), K("k3")])
    for correction in corrections:
        found |= dict.fromkeys(quantities_of(correction))
    return list(found)
