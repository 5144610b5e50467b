"""What a trainer logged: numbers by training step and key, with the digits that the log shows.

A `LogReader` is one format of logs, read as records, one for each logged row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct

from rcdiag.entry import Entry
from rcdiag.errors import RcdiagError

# Keys under which loggers write the training step. A run's own counter comes before `_step`, with
# which W&B counts its rows. Upper case makes no difference.
STEP_KEYS = (
    "step",
    "global_step",
    "training/global_step",
    "train/global_step",
    "trainer/global_step",
    "train/step",
    "trainer/step",
    "rollout/step",
    "iteration",
    "_step",
)
# ms-swift writes `7/100` under this key.
STEP_OF_ALL = "global_step/max_steps"
# A key shows its own rounding if it has at least this many distinct numbers with at least this many
# decimals.
OWN_NUMBERS, OWN_DECIMALS = 3, 3
# With fewer decimals or significant digits than these a number may be exact, such as 0.5, and does
# not show that the log rounds.
DECIMALS, SIGNIFICANT = 2, 3
# Integers beyond the range of float64 are identifiers, no metrics.
LARGEST = 10**300


class LoggedNumber(Struct, frozen=True):
    """A number of a log, and its text there; the text is empty where the file is binary."""

    value: float
    text: str = ""

    @classmethod
    def read(cls, text: str) -> LoggedNumber:
        """Read the text of a number; ValueError where it is none."""
        return cls(float(text), text.strip())

    @property
    def digits(self) -> tuple[int, int] | None:
        """Return decimals and significant digits that the text shows; None for whole numbers."""
        if not any(mark in self.text for mark in ".eE") or not math.isfinite(self.value):
            return None
        try:
            _, digits, exponent = Decimal(self.text).as_tuple()
        except InvalidOperation:
            return None
        assert isinstance(exponent, int)
        return max(0, -exponent), len(digits)


Row = Mapping[str, LoggedNumber]


class Log(Struct, frozen=True, dict=True):
    """What a trainer logged, by training step in ascending order."""

    path: Path
    format: str
    rows: Mapping[int | None, Row]  # None: the only row of a log without steps
    counted: bool = False  # the log names no steps: its rows are counted from 0
    resumed: tuple[int, ...] = ()  # steps to which the log goes back: a run that was resumed there

    @cached_property
    def keys(self) -> dict[str, int]:
        """Return every key with the number of steps that hold it, in the order of the log."""
        counts: dict[str, int] = {}
        for row in self.rows.values():
            for key in row:
                counts[key] = counts.get(key, 0) + 1
        return counts

    def rounding(self, key: str, number: LoggedNumber) -> float:
        """Return how far the number as computed may be from the number as the log shows it.

        A log that rounds shows few decimals, or few significant digits, in all its numbers; a
        trainer may also round one key alone.
        """
        if not number.text:
            return 0.0
        decimals, significant = self._digits_of(key) or self._digits
        rounding = [0.0]
        if decimals >= DECIMALS:
            rounding.append(0.5 * 10.0**-decimals)
        if significant >= SIGNIFICANT and number.value and math.isfinite(number.value):
            exponent = math.floor(math.log10(abs(number.value))) + 1 - significant
            rounding.append(0.5 * 10.0**exponent)
        return max(rounding) * (1.0 + 1e-9)

    @cached_property
    def _digits(self) -> tuple[int, int]:
        """Return the most decimals and the most significant digits of all numbers."""
        return _most(number for row in self.rows.values() for number in row.values())

    def _digits_of(self, key: str) -> tuple[int, int] | None:
        """Return the most digits of one key, where it has enough numbers to tell its rounding."""
        numbers = [row[key] for row in self.rows.values() if key in row]
        texts = {number.text for number in numbers if number.digits is not None}
        most = _most(numbers)
        return most if len(texts) >= OWN_NUMBERS and most[0] >= OWN_DECIMALS else None


def _most(numbers: Iterable[LoggedNumber]) -> tuple[int, int]:
    shown = [digits for number in numbers if (digits := number.digits) is not None]
    return max((d for d, _ in shown), default=0), max((s for _, s in shown), default=0)


def log_of(path: Path, format: str, records: Iterable[Mapping[str, Any]]) -> Log:
    """Group records by training step; where a step has a key twice, the last number counts."""
    flat = [row for record in records if (row := dict(_flat(record)))]
    if not flat:
        raise RcdiagError(
            f"{path}: no numbers in it (read as {format})",
            hint="give the log that the trainer wrote, with a row for each training step",
        )
    steps = [_step_of(row) for row in flat]
    counted = len(flat) > 1 and all(step is None for step in steps)
    rows: dict[int | None, dict[str, LoggedNumber]] = {}
    latest: dict[str, int] = {}  # key -> the step that it was logged at last
    resumed = []
    for index, (step, row) in enumerate(zip(steps, flat, strict=True)):
        if step is None and not counted and len(flat) > 1:
            continue  # a summary row of the whole run, among rows of steps
        numbers = rows.setdefault(index if counted else step, {})
        numbers |= {key: number for key, number in row.items() if not is_step(key)}
        if step is not None:
            # Rows of other keys, such as those of an evaluation, may have a counter of their own.
            if any(latest.get(key, step) > step for key in row):
                resumed.append(step)
            latest |= dict.fromkeys(row, step)
    ordered = sorted(rows, key=lambda step: -1 if step is None else step)
    return Log(path, format, {step: rows[step] for step in ordered}, counted, tuple(resumed))


def is_step(key: str) -> bool:
    """Tell whether a key is the counter of steps."""
    return key.lower() in (*STEP_KEYS, STEP_OF_ALL)


def _step_of(row: Row) -> int | None:
    by_name = {key.lower(): number.value for key, number in row.items()}
    for name in (*STEP_KEYS, STEP_OF_ALL):
        value = by_name.get(name)
        if value is not None and math.isfinite(value) and value == int(value):
            return int(value)
    return None


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, LoggedNumber]]:
    """Yield the numbers of a record; keys of nested mappings are joined by a slash."""
    for name, value in record.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            # verl's file logger holds all numbers under `data`.
            inner = "" if key == "data" and not prefix else f"{key}/"
            yield from _flat(value, inner)
        elif (number := _number(key, value)) is not None:
            yield key, number


def _number(key: str, value: Any) -> LoggedNumber | None:
    if isinstance(value, LoggedNumber):
        return value
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return LoggedNumber(float(value), str(value)) if abs(value) < LARGEST else None
    if isinstance(value, float):
        return LoggedNumber(value)
    if not isinstance(value, str):
        return None
    text = value.partition("/")[0] if key.lower() == STEP_OF_ALL else value
    try:
        return LoggedNumber.read(text)
    except ValueError:
        return None


HEAD = 4096  # bytes by which formats are recognised


class LogFile(Struct, frozen=True):
    """A file, or a folder of event files, whose format is not known yet."""

    path: Path
    head: bytes  # the first bytes; of a folder none

    @classmethod
    def at(cls, path: Path) -> LogFile:
        """Open what a user named; RcdiagError where it is missing, empty or cannot be read."""
        try:
            if path.is_dir():
                return cls(path, b"")
            with path.open("rb") as stream:
                head = stream.read(HEAD)
        except OSError as error:
            raise RcdiagError(
                f"{path}: cannot be read ({error.strerror or error})",
                hint="give the log that the trainer wrote: JSONL, CSV, an exported W&B history or "
                "TensorBoard events, or what the run printed",
            ) from error
        if not head.strip():
            raise RcdiagError(f"{path}: empty", hint="give a log with a step in it")
        return cls(path, head)

    def text(self) -> str:
        """Return the whole file as text; RcdiagError where it is none."""
        try:
            return self.path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise RcdiagError(
                f"{self.path}: not text in UTF-8 (byte {error.start})", hint="write it as UTF-8"
            ) from error

    @property
    def first_line(self) -> str:
        """Return the first line with something in it; empty where the file is no text."""
        if b"\0" in self.head:
            return ""
        try:
            with self.path.open(encoding="utf-8-sig") as stream:
                return next((line.strip() for line in stream if line.strip()), "")
        except (OSError, UnicodeDecodeError):
            return ""


class LogReader(Struct, frozen=True, kw_only=True):
    """A format that a trainer's log may have."""

    name: str
    says: str  # who writes it, in a few words
    detect: Callable[[LogFile], bool]  # whether a file is of this format
    # The rows of the log: key -> value. Numbers that the file writes as text are `LoggedNumber`s,
    # which know their digits; values may be nested mappings; what is no number is ignored.
    read: Callable[[LogFile], Iterator[Mapping[str, Any]]]

    def entry(self) -> Entry:
        """Say who writes logs of this format, and how rcdiag reads one."""
        return Entry(
            what=f"A trainer's own log that `rcdiag score --logged` reads: {self.says}.",
            example="rcdiag score rollouts.parquet --logged FILE",
            see=("log_format", "theirs"),
        )
