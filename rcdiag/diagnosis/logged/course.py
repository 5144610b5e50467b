"""The course of a run: which of its numbers change at which steps, and how its mismatch grows."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Counts
from rcdiag.diagnosis.logged.changes import Change, changes_of, periodic_steps
from rcdiag.diagnosis.logged.run import FLOOR, LoggedRun, Series
from rcdiag.diagnosis.logged.window import SIZES

# Quantities that measure the size of a mismatch, in order of preference.
OF_SIZE = (*SIZES, "prob_diff", "pearson", "k1")
# Quantities whose steady growth is one of the mismatch.
THAT_GROW = (*SIZES, "prob_diff", "k1")
# A mismatch that creeps by this factor is one of weights that fall behind.
FELL_BEHIND = 4.0


class Course(Struct, frozen=True, dict=True):
    """A run, and the changes of its numbers over the steps."""

    run: LoggedRun

    @cached_property
    def periodic(self) -> Counts:
        """Return the periodic steps at which alone the mismatch is large; often none."""
        sizes = (self.run.series[name] for name in OF_SIZE if name in self.run.series)
        return next(
            (steps for one in sizes if len(steps := periodic_steps(one))), np.zeros(0, np.int64)
        )

    @cached_property
    def changes(self) -> list[Change]:
        """Return the changes of all numbers, by step; periodic steps are left out."""
        each = (changes_of(one, self.periodic) for one in self.run.series.values())
        return sorted((change for of in each for change in of), key=lambda change: change.step)

    @cached_property
    def of_mismatch(self) -> list[Change]:
        """Return the changes of numbers that compare the two policies."""
        series = self.run.series
        return [one for one in self.changes if series[one.quantity].quantity.compares]

    def changes_in(self, quantity: str) -> list[Change]:
        """Return the changes of one quantity."""
        return [one for one in self.changes if one.quantity == quantity]

    def lasts(self, change: Change, step: int) -> bool:
        """Tell whether a step is in the stretch of a change: before the quantity's next change."""
        later = [one.step for one in self.changes_in(change.quantity) if one.step > change.step]
        return change.step <= step < min(later, default=step + 1)

    def steps_of(self, change: Change) -> Counts:
        """Return the steps from a change to the next one of its quantity."""
        steps = [step for step in self.run.steps.tolist() if self.lasts(change, step)]
        return np.array(steps, np.int64)

    def grown(self, growth: Change) -> int:
        """Return the first step of the last quarter of a growth, where the mismatch is largest."""
        during = self.steps_of(growth)
        return int(during[-max(len(during) // 4, 1)])

    @property
    def size(self) -> Series | None:
        """Return the series that measures the size of the log-ratios."""
        names = (*SIZES, "k1")
        return next((self.run.series[name] for name in names if name in self.run.series), None)

    @property
    def growths(self) -> list[Change]:
        """Return the growths of the mismatch by many times."""
        return [
            change
            for change in self.changes
            if change.quantity in THAT_GROW
            and change.shape == "creep"
            and change.after > FELL_BEHIND * max(change.before, FLOOR)
        ]

    @property
    def drift(self) -> Change | None:
        """Return the growth of the log-ratios' size while the weights are updated, or None."""
        size = self.size
        growths = (one for one in self.growths if size and one.quantity == size.quantity.name)
        return next((one for one in growths if self.run.is_trained(one.low)), None)
