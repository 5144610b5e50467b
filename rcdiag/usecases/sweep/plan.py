"""The settings that a sweep tries, fixed before the pass so that the sums of all parts add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct, field

from rcdiag.corrections.apply import EstimatorSettings
from rcdiag.statistics.clusters import Keys
from rcdiag.table.survey import frequent_ids, number_groups, read_groups_and_rewards
from rcdiag.table.table import Table
from rcdiag.usecases.sweep.bins import Layout
from rcdiag.usecases.sweep.candidates import CANDIDATES, EstimatorSetting
from rcdiag.usecases.sweep.estimator_families import FAMILIES, Bounds, settings
from rcdiag.usecases.sweep.sketched_gradients import Baseline, Buckets

Grids = Mapping[str, Sequence[Bounds]]


class SweepPlan(Struct, frozen=True, dict=True):
    """The settings of all families, the candidates among them, and facts about the table."""

    grids: Grids  # family -> its settings; "none" has a single one, without correction
    # Settings that are judged by their gradients.
    candidates: Mapping[str, EstimatorSetting] = field(default_factory=dict)
    grouped: bool = False  # whether rows have a prompt group
    recorded: bool = False  # whether rows have an advantage
    baseline: Baseline | None = None  # for advantages, if these are not recorded
    buckets: Buckets = field(default_factory=lambda: Buckets(np.empty(0, np.int32)))
    # Hashes of all prompt groups, ascending, and the number of each; None: hashes are the numbers.
    groups: tuple[Keys, Keys] | None = None

    def cluster_numbers(self, clusters: Keys) -> Keys:
        """Return the number of each sequence's prompt group.

        These numbers, not the names of groups, decide which groups share a row of sums.
        """
        if self.groups is None:
            return clusters
        hashes, numbers = self.groups
        return numbers[np.searchsorted(hashes, clusters)]

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        """Return the layout of every family's settings."""
        return {
            family: Layout.of(
                EstimatorSettings.of(
                    [EstimatorSetting(family, bounds, 0).correction for bounds in grid]
                )
            )
            for family, grid in self.grids.items()
        }

    def place(self, candidate: str) -> tuple[str, int]:
        """Return the family of a candidate, and the index of its setting there."""
        setting = self.candidates[candidate]
        return setting.family, self.grids[setting.family].index(setting.bounds)

    @property
    def without_signal(self) -> bool:
        """Tell whether the table has neither advantages nor rewards."""
        return not self.recorded and (self.baseline is None or np.isnan(self.baseline.overall))


def plan_of_table(
    table: Table, thresholds: int, candidates: Mapping[str, EstimatorSetting] = CANDIDATES
) -> SweepPlan:
    """Plan about `thresholds` settings of each family, including those of the candidates.

    For this the table's groups, rewards and first token ids are read.
    """
    by_family: dict[str, list[Bounds]] = {}
    for candidate in candidates.values():
        by_family.setdefault(candidate.family, []).append(candidate.bounds)
    grids = {
        name: settings(family, thresholds, by_family.get(name, ()))
        for name, family in FAMILIES.items()
    }
    names = table.schema.names
    recorded = bool({"advantage", "advantages"} & set(names))
    groups, rewards = read_groups_and_rewards(table)
    return SweepPlan(
        {"none": [{}], **grids},
        candidates,
        grouped="group_id" in names,
        recorded=recorded,
        baseline=None if recorded else Baseline.of(groups, rewards),
        buckets=Buckets(frequent_ids(table)),
        groups=None if groups is None else number_groups(groups),
    )
