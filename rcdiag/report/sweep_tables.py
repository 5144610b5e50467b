"""The tables of a sweep's page: cells, sliders, and the configuration of every row."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan

from rcdiag.corrections.emit import emit
from rcdiag.errors import RcdiagError
from rcdiag.report.words import interval, number, percent
from rcdiag.results import MetricValue, SweepFamily, SweepRow
from rcdiag.sweeping.families import FAMILIES

TRAINERS = ("verl", "verl-0.7.0", "slime")
NUMBER = re.compile(r"(?<![A-Za-z0-9.])\d[\d.]*(?:e[+-]?\d+)?")
MARK = "\u0001"


def _with_interval(value: MetricValue) -> str:
    ends = interval(value) if value.low != value.high else ""
    return f"{number(value.value)} ({ends})" if ends else number(value.value)


COLUMNS: dict[str, Callable[[SweepRow], str]] = {
    "kept tokens": lambda row: percent(row.kept_token_share),
    "kept sequences": lambda row: percent(row.kept_sequence_share),
    "kept groups": lambda row: f"{row.kept_groups:,}",
    "ESS tokens": lambda row: number(row.ess_token),
    "ESS sequences": lambda row: _with_interval(row.ess_seq),
    "ESS as verl logs it": lambda row: number(row.ess_trainer),
    "mean weight": lambda row: _with_interval(row.mean_weight),
    "lost mass": lambda row: _with_interval(row.lost_mass),
    "truncation loss": lambda row: number(row.truncation_loss.value),
    "variance": lambda row: number(row.variance),
    "bias": lambda row: number(row.bias),
    "bias bound": lambda row: number(row.bias_bound),
    "reward shift": lambda row: _with_interval(row.reward_shift),
    "advantage shift": lambda row: number(row.advantage_shift.value),
    "keep-length correlation": lambda row: number(row.keep_length_correlation),
}


@dataclass(frozen=True, slots=True)
class Slider:
    """One bound of a family, and the values that it takes."""

    key: str
    values: list[float]

    @property
    def texts(self) -> list[str]:
        return [f"{value:.9g}" for value in self.values]


def sliders(family: SweepFamily) -> list[Slider]:
    """One for every bound that varies by itself; a window that moves as one has one."""
    keys = list(family.rows[0].bounds)
    found: list[Slider] = []
    for key in sorted(keys, key=lambda key: key != family.axis):
        values = sorted({row.bounds[key] for row in family.rows})
        if len(values) > 1 and not any(_tied(family, key, other.key) for other in found):
            found.append(Slider(key, values))
    return found or [Slider(family.axis, [family.rows[0].bounds[family.axis]])]


def _tied(family: SweepFamily, key: str, other: str) -> bool:
    """Whether one bound follows from the other."""
    pairs = {(row.bounds[key], row.bounds[other]) for row in family.rows}
    return len(pairs) == len({second for _, second in pairs})


def cells(row: SweepRow, keys: Sequence[Slider]) -> list[str]:
    """All texts of a row of the table, in the order of its heads."""
    bounds = [f"{row.bounds[each.key]:.9g}" for each in keys]
    quarters = ["n/a" if isnan(each) else f"{100.0 * each:.1f}%" for each in row.kept_by_length]
    return [*bounds, *(column(row) for column in COLUMNS.values()), *quarters]


def configs(name: str, family: SweepFamily) -> tuple[list[list[str]], list[str]]:
    """Templates of every trainer, and for every row which template and which numbers.

    Texts of one family differ in numbers alone: a template and its numbers are a tenth of them.
    """
    texts = [[_text(name, row, trainer) for row in family.rows] for trainer in TRAINERS]
    templates, entries = zip(*(_factored(each) for each in texts), strict=True)
    return list(templates), ["|".join(each) for each in zip(*entries, strict=True)]


def _text(name: str, row: SweepRow, trainer: str) -> str | None:
    try:
        return emit(FAMILIES[name].correction(row.bounds), trainer).text
    except RcdiagError:
        return None  # the trainer has no such estimator


def _factored(texts: Sequence[str | None]) -> tuple[list[str], list[str]]:
    templates: dict[str, int] = {}
    entries = []
    for text in texts:
        if text is None:
            entries.append("")
            continue
        index = templates.setdefault(NUMBER.sub(MARK, text), len(templates))
        entries.append(" ".join([str(index), *NUMBER.findall(text)]))
    return list(templates), entries
