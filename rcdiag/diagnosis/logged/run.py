"""A training log as one series for each quantity, under the keys of any trainer."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cached_property
from importlib.resources import files

import numpy as np
from msgspec import Struct, convert

from rcdiag.diagnosis.case import Array, Counts
from rcdiag.diagnosis.thresholds import LARGEST_VOCABULARY
from rcdiag.errors import RcdiagError, setting
from rcdiag.logs.log import Log
from rcdiag.registry import Registry

# Lower bound of values before the logarithm: a mismatch of 1e-7 nats is float32 rounding.
FLOOR = 1e-7
# Nats: a KL by k1 is compared linearly up to this size, and by factors beyond it. It is the guide
# of k3_kl, which rounding does not exceed.
LINEAR_UP_TO = 1e-3
# Prefix of the correction's keys if the update computes them (bypass mode, verl from 0.8.0 on).
OF_BYPASS = "actor/rollout_corr/"
# A mean of ratio^2 above this, or below its reciprocal, is dominated by a few terms and moves by
# chance; it is clipped here.
OF_ONE = 10.0
# Beyond the range of float32 by far, as a mean of ratios that overflowed: read as infinite, since
# squares of such values overflow in float64 as well.
OVERFLOWED = 1e100


class LoggedQuantity(Struct, frozen=True, kw_only=True):
    """A number that a training log may hold at each step, and the keys that trainers give it."""

    name: str
    says: str
    unit: str = ""  # empty for quantities without a unit, such as the gradient norm
    # Scale on which changes are measured: `linear`, `log`, `correlation` (log(1 - value)),
    # `squared ratio` (log(1 + value)), or `signed log` (asinh(value / LINEAR_UP_TO)).
    scale: str
    keys: tuple[str, ...]
    negated: tuple[str, ...] = ()  # keys that hold the quantity with the other sign
    mismatch: bool = False  # a number of the mismatch, not of the run as such
    alone: bool = False  # a number of one policy alone, which changes without a fault as well

    @property
    def compares(self) -> bool:
        """Tell whether the quantity compares the two policies."""
        return self.mismatch and not self.alone

    def scaled(self, values: Array) -> Array:
        """Return values on the quantity's `scale`."""
        if self.scale == "linear":
            return values
        if self.scale == "signed log":
            return np.arcsinh(values / LINEAR_UP_TO)
        squares = np.clip(1.0 + values, 1.0 / OF_ONE, OF_ONE)
        sizes = {"log": values, "correlation": 1.0 - values, "squared ratio": squares}
        scaled: Array = np.log(np.maximum(sizes[self.scale], FLOOR))
        return scaled


def _shipped() -> tuple[LoggedQuantity, ...]:
    text = files(__package__).joinpath("quantities.toml").read_text(encoding="utf-8")
    return tuple(
        convert({"name": name, **of}, LoggedQuantity) for name, of in tomllib.loads(text).items()
    )


QUANTITIES: Registry[LoggedQuantity] = Registry("quantity of logs", _shipped)


class Series(Struct, frozen=True, kw_only=True):
    """A quantity of a run at each step that logs it; values may be NaN or infinite."""

    quantity: LoggedQuantity
    key: str  # in the log; "-key" where the log has the quantity with the other sign
    steps: Counts  # [logged steps] ascending
    values: Array  # [logged steps]
    rounding: float = 0.0  # the largest number that the log prints as 0

    def at(self, steps: Counts) -> Array:
        """Return the values at some steps."""
        return self.values[np.isin(self.steps, steps)]


class Known(Struct, frozen=True, kw_only=True):
    """What is known from the user or the run's configuration, besides the log; None: unknown."""

    vocabulary: int = LARGEST_VOCABULARY
    lower: float | None = None  # bounds of a token's ratio outside which weights are changed
    upper: float | None = None
    veto: float | None = None  # a response is rejected if a token's ratio is below this
    of_tokens: bool | None = None  # whether weights are of tokens, not of responses
    least_ess: float | None = None  # the smallest ESS that the trainer can log
    bypass: bool = False  # bypass mode: the rollout policy takes the place of the old one


class LoggedRun(Struct, frozen=True, dict=True):
    """One run's log, by quantity."""

    name: str  # of the file
    log: Log
    series: Mapping[str, Series]  # name of a quantity -> its series
    known: Known = Known()
    named: frozenset[str] = frozenset()  # keys that the user named; they do not tell the trainer

    @cached_property
    def steps(self) -> Counts:
        """Return the steps at which any quantity is logged, ascending."""
        return np.unique(np.concatenate([one.steps for one in self.series.values()]))

    @property
    def key_of_bypass(self) -> str | None:
        """Return a key that verl logs only in bypass mode, or None."""
        return next((one.key for one in self.of_mismatch if OF_BYPASS in one.key), None)

    @property
    def in_bypass(self) -> bool:
        """Tell whether the run is known to take the sampler's log-probs for the old ones."""
        return self.known.bypass or self.key_of_bypass is not None

    def is_trained(self, since: int) -> bool:
        """Tell whether the run may be trained from a step on: its learning rate is not 0."""
        rate = self.series.get("learning_rate")
        if rate is None:
            return True
        values = rate.values[rate.steps >= since]
        return len(values) == 0 or bool((values != 0.0).any())

    @property
    def of_mismatch(self) -> list[Series]:
        """Return the series of the mismatch's quantities."""
        return [one for one in self.series.values() if one.quantity.mismatch]


def logged_run(name: str, log: Log, keys: Mapping[str, str] | None = None) -> LoggedRun:
    """Read a log by quantity; `keys` maps quantities to keys that rcdiag does not know.

    Of several runs one may lack a given key, and is read by the keys that rcdiag knows.

    If a log has a quantity under two keys, the one that comes first in the quantity's list is used.
    """
    given = {}
    for name_of_quantity, key in (keys or {}).items():
        called = _quantity_called(name_of_quantity, key).name
        if key in log.keys:
            given[called] = key
    spelled = {key: _spellings(key) for key in log.keys}
    series = {}
    for quantity in QUANTITIES.values():
        known = (*quantity.keys, *quantity.negated)
        in_log = (key for one in known for key, names in spelled.items() if one in names)
        found = given.get(quantity.name) or next(in_log, None)
        if found is not None and len((one := _series(quantity, found, log)).steps):
            series[quantity.name] = one
    if "rejected" not in series and {"rejected_count", "kept_count"} <= series.keys():
        series["rejected"] = _share(series.pop("rejected_count"), series.pop("kept_count"))
    return LoggedRun(name, log, series, named=frozenset(given.values()))


def _share(rejected: Series, kept: Series) -> Series:
    """Return the share of rejected responses by the numbers of rejected and of kept ones."""
    steps, here, there = np.intersect1d(rejected.steps, kept.steps, return_indices=True)
    counts = rejected.values[here]
    with np.errstate(invalid="ignore"):
        share = counts / (counts + kept.values[there])
    key = f"{rejected.key} / ({rejected.key} + {kept.key})"
    return Series(quantity=QUANTITIES["rejected"], key=key, steps=steps, values=share)


def _quantity_called(name: str, key: str) -> LoggedQuantity:
    """Return a quantity by its name, or by the last part of a key that a trainer gives it."""
    if name in QUANTITIES:
        return QUANTITIES[name]
    for quantity in QUANTITIES.values():
        if any(name in _spellings(known) for known in quantity.keys):
            return quantity
    raise RcdiagError(
        f"{setting('keys', f'{name}={key}', '--key')}: no quantity of logs",
        hint="one of " + ", ".join(QUANTITIES),
    )


def _spellings(key: str) -> set[str]:
    """Return a key with and without prefixes that loggers add, such as `train/`."""
    plain, found = key.partition("@")[0], set()  # ROLL's tag, `actor/clipfrac@sum`
    while plain:
        found.add(plain)
        _, _, plain = plain.partition("/")
    return found


def _series(quantity: LoggedQuantity, key: str, log: Log) -> Series:
    rows = [
        (0 if step is None else step, row[key].value)
        for step, row in log.rows.items()
        if key in row
    ]
    negated = bool(_spellings(key) & set(quantity.negated))
    zeros = {row[key] for row in log.rows.values() if key in row and not row[key].value}
    values = np.array([-value if negated else value for _, value in rows], np.float64)
    overflowed = np.abs(values) > OVERFLOWED
    values[overflowed] = np.copysign(np.inf, values[overflowed])
    return Series(
        quantity=quantity,
        key=f"-{key}" if negated else key,
        steps=np.array([step for step, _ in rows], np.int64),
        values=values,
        rounding=max((log.rounding(key, zero) for zero in zeros), default=0.0),
    )
