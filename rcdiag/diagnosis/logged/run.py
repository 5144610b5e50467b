"""A training log as series of quantities, by the keys of any trainer."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.resources import files

import numpy as np
from msgspec import Struct, convert
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError, setting
from rcdiag.logs.log import Log
from rcdiag.registry import Registry

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

# Below these a logarithm says nothing: a mismatch of 1e-7 nats is one of float32.
FLOOR = 1e-7
# What verl from 0.8.0 on puts before keys of the correction where the update computes them.
OF_BYPASS = "actor/rollout_corr/"
# A mean of ratio^2 above this is that of its largest term, and says no more than that.
OF_ONE = 100.0
# A counter beyond this is no training step: float64 does not hold its last digit.
LARGEST_STEP = 2**53
LARGEST_VOCABULARY = 2**18  # tokens; of a vocabulary that the user does not give


class Quantity(Struct, frozen=True, kw_only=True):
    """A number that a training log may hold at each step, and the keys that trainers give it."""

    name: str
    says: str
    unit: str = ""  # empty for what has none, such as a norm of the gradient
    # On which it moves: `linear`, `log`, `correlation` (log of one minus it), or `squared ratio`
    # (log of one plus it).
    scale: str
    keys: tuple[str, ...]
    mismatch: bool = False  # a number of the two policies; others stand beside it
    alone: bool = False  # of one of the two, which moves without a fault as well

    @property
    def compares(self) -> bool:
        """Tell whether it lays one policy beside the other."""
        return self.mismatch and not self.alone

    def scaled(self, values: Array) -> Array:
        """Return values on the scale on which the quantity moves."""
        if self.scale == "linear":
            return values
        squares = np.minimum(1.0 + values, OF_ONE)
        sizes = {"log": values, "correlation": 1.0 - values, "squared ratio": squares}
        scaled: Array = np.log(np.maximum(sizes[self.scale], FLOOR))
        return scaled


def _shipped() -> tuple[Quantity, ...]:
    text = files(__package__).joinpath("quantities.toml").read_text(encoding="utf-8")
    return tuple(
        convert({"name": name, **of}, Quantity) for name, of in tomllib.loads(text).items()
    )


QUANTITIES: Registry[Quantity] = Registry("quantity of logs", _shipped)


class Series(Struct, frozen=True, kw_only=True):
    """A quantity of a run at each step that logs it; values may be NaN or infinite."""

    quantity: Quantity
    key: str  # as the log has it
    steps: Counts  # [logged steps] ascending
    values: Array  # [logged steps]

    def at(self, steps: Counts) -> Array:
        """Return the values of some steps."""
        return self.values[np.isin(self.steps, steps)]


class Known(Struct, frozen=True, kw_only=True):
    """What the user or the run's configuration says beside the log; None: nothing does."""

    vocabulary: int = LARGEST_VOCABULARY
    lower: float | None = None  # bounds of the ratio of a token, beyond which weights are changed
    upper: float | None = None
    veto: float | None = None  # a response with a token of a smaller ratio is rejected
    of_tokens: bool | None = None  # weights of tokens, not of responses
    least_ess: float | None = None  # that can be logged, whatever the ratios are
    bypass: bool = False  # the rollout policy stands for the old one


class LoggedRun(Struct, frozen=True, dict=True):
    """One run's log, by quantity."""

    name: str  # of the file
    log: Log
    series: Mapping[str, Series]  # quantity -> its numbers
    known: Known = Known()

    @cached_property
    def steps(self) -> Counts:
        """Return the steps that have a number of any quantity, ascending."""
        return np.unique(np.concatenate([one.steps for one in self.series.values()]))

    @property
    def key_of_bypass(self) -> str | None:
        """Return a key that verl logs in bypass mode alone, from its update; None without any."""
        return next((one.key for one in self.of_mismatch if OF_BYPASS in one.key), None)

    @property
    def of_mismatch(self) -> list[Series]:
        """Return the series of the two policies."""
        return [one for one in self.series.values() if one.quantity.mismatch]


def logged_run(name: str, log: Log, keys: Mapping[str, str] | None = None) -> LoggedRun:
    """Read a log by quantity; `keys` names keys that no trainer known to rcdiag has.

    A quantity that a log has under two keys is taken from the first in the quantity's list.
    """
    given = dict(keys or {})
    for name_of_quantity, key in given.items():
        if name_of_quantity not in QUANTITIES:
            raise RcdiagError(
                f"{setting('keys', f'{name_of_quantity}={key}', '--key')}: no quantity of logs",
                hint="one of " + ", ".join(QUANTITIES),
            )
        if key not in log.keys:
            raise RcdiagError(
                f"{log.path}: no key {key!r}", hint="it has " + ", ".join(list(log.keys)[:8])
            )
    series = {}
    for quantity in QUANTITIES.values():
        found = given.get(quantity.name) or _key_of(quantity, list(log.keys))
        if found is not None and len((one := _series(quantity, found, log)).steps):
            series[quantity.name] = one
    return LoggedRun(name, log, series)


def _key_of(quantity: Quantity, keys: Sequence[str]) -> str | None:
    """Return the key of a log that has a quantity; None where none has."""
    spelled = {key: _spellings(key) for key in keys}
    for known in quantity.keys:
        for key in keys:
            if known in spelled[key]:
                return key
    return None


def _spellings(key: str) -> set[str]:
    """Return a key with and without the words that loggers put before it, such as `train/`."""
    plain, found = key.partition("@")[0], set()  # ROLL's tag, `actor/clipfrac@sum`
    while plain:
        found.add(plain)
        _, _, plain = plain.partition("/")
    return found


def _series(quantity: Quantity, key: str, log: Log) -> Series:
    rows = [
        (0 if step is None else step, row[key].value)
        for step, row in log.rows.items()
        if key in row and (step is None or abs(step) < LARGEST_STEP)
    ]
    return Series(
        quantity=quantity,
        key=key,
        steps=np.array([step for step, _ in rows], np.int64),
        values=np.array([value for _, value in rows], np.float64),
    )
