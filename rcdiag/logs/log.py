"""A trainer's metrics log: numbers by training step and key, with the digits that the log shows.

A `LogReader` reads one format of logs as records, one for each logged row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rcdiag.entry import Entry
from rcdiag.errors import RcdiagError
from rcdiag.formats import listed, plural
from rcdiag.table.sources import unpacked

# Keys of the training step, in lower case. `_step` comes last: W&B counts its rows with it, while
# the others are the run's own counters.
STEP_KEYS = (
    "step",
    "global_step",
    "training/global_step",
    "train/global_step",
    "trainer/global_step",
    "training_step",
    "train/step",
    "trainer/step",
    "rollout/step",
    "iteration",
    "_step",
)
# slime and miles count updates by the first key, and rollouts by the others in rows of their own:
# `train/step` is rollout * updates + update (slime/backends/megatron_utils/model.py).
OF_UPDATES, OF_ROLLOUTS = "train/step", ("rollout/step", "step")
# ms-swift writes the step as `7/100` under this key.
STEP_OF_ALL = "global_step/max_steps"
# The rounding of a key is read from its own numbers if at least OWN_NUMBERS different ones have
# at least OWN_DECIMALS decimals.
OWN_NUMBERS, OWN_DECIMALS = 3, 3
# A number with fewer decimals or significant digits than these may be exact, such as 0.5, and does
# not show that the log rounds.
DECIMALS, SIGNIFICANT = 2, 3
# A log that goes back to its first step after this many steps holds another run from there on;
# fewer are those of processes that print the same steps in turn.
STEPS_OF_A_RUN = 6
# A log of which a larger share of the lines cannot be read is refused.
MOST_UNREADABLE = 0.1
SHOWN_LINES, SHOWN_KEYS = 8, 8  # that a message names
# Larger integers do not fit into float64 and are identifiers, not metrics.
LARGEST = 10**300
# A larger counter is not a training step: float64 cannot represent its last digit.
LARGEST_STEP = 2**53


class LoggedNumber(Struct, frozen=True):
    """A number of a log with its text there, which is "" in a binary file."""

    value: float
    text: str = ""

    @classmethod
    def read(cls, text: str) -> LoggedNumber:
        """Parse the text of a number; ValueError if it is not one."""
        return cls(float(text), text.strip())

    @property
    def digits(self) -> tuple[int, int] | None:
        """Return the text's decimals and significant digits; None for whole numbers."""
        if not any(mark in self.text for mark in ".eE") or not math.isfinite(self.value):
            return None
        try:
            _, digits, exponent = Decimal(self.text).as_tuple()
        except InvalidOperation:
            return None
        assert isinstance(exponent, int)
        return max(0, -exponent), len(digits)


Row = Mapping[str, LoggedNumber]


class UnreadableLine(Struct, frozen=True):
    """A line of a log that a reader could not parse, such as one that was cut."""

    number: int  # from 1
    reason: str


class ShortLine(Struct, frozen=True):
    """A line that ends before its last keys; what it has is a record beside this."""

    number: int  # from 1


class RunStart(Struct, frozen=True):
    """The beginning of another run, between the records of a reader whose files hold several."""

    name: str


Record = Mapping[str, Any] | UnreadableLine | ShortLine | RunStart


class Log(Struct, frozen=True, dict=True):
    """A trainer's log, by training step in ascending order."""

    path: Path
    format: str
    rows: Mapping[int | None, Row]  # None: the only row of a log without steps
    counted: bool = False  # the log has no steps; rows are counted from 1
    updates: int = 1  # of each rollout, where the log counts both; then steps are rollouts
    resumed: tuple[int, ...] = ()  # steps to which the log goes back, since the run was resumed
    repeated: tuple[int, ...] = ()  # steps that it has twice, since it was resumed before them
    run: str = ""  # name of the run, in a file of several that names them
    earlier: tuple[Log, ...] = ()  # runs that the file holds before this one, from their start on
    unreadable: tuple[int, ...] = ()  # lines of the file that could not be read, from 1
    short: tuple[int, ...] = ()  # lines of the file that lack their last keys
    lines: int = 0  # of the file that hold records, with the unreadable ones

    @property
    def notes(self) -> list[str]:
        """Return sentences on what of the file was left out."""
        notes = []
        if bad := self.unreadable:
            notes.append(f"{len(bad)} of {self.lines} lines could not be read: {_listed(bad)}.")
        if short := self.short:
            notes.append(
                f"{len(short)} of {self.lines} lines lack their last keys, as if cut: "
                f"{_listed(short)}."
            )
        if self.counted:
            notes.append("The log has no step numbers; its rows are counted from 1.")
        if self.updates > 1:
            notes.append(
                f"The log counts {self.updates} updates (`{OF_UPDATES}`) of each rollout "
                f"(`{OF_ROLLOUTS[0]}`): steps are rollouts, with the numbers of their last update."
            )
        if twice := self.repeated:
            ends = str(twice[0]) if len(twice) == 1 else f"{twice[0]} to {twice[-1]}"
            notes.append(
                f"{plural(len(twice), 'step')} ({ends}) logged twice, since the run was resumed at "
                f"step {self.resumed[0]}; the later numbers count."
            )
        return notes

    @cached_property
    def keys(self) -> dict[str, int]:
        """Return every key with the number of steps that have it, in the order of the log."""
        counts: dict[str, int] = {}
        for row in self.rows.values():
            for key in row:
                counts[key] = counts.get(key, 0) + 1
        return counts

    def rounding(self, key: str, number: LoggedNumber) -> float:
        """Return the largest difference between a logged number and the one that was computed.

        A log that rounds has few decimals, or few significant digits, in all its numbers; a trainer
        may also round a single key.
        """
        if not number.text:
            return 0.0
        # `0.0000` is printed with fixed decimals: the shortest text of 0 has one.
        if not number.value and number.digits and number.digits[0] >= DECIMALS:
            return 0.5 * 10.0 ** -number.digits[0]
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
        """Return the largest number of decimals and of significant digits in the log."""
        return _max_digits(number for row in self.rows.values() for number in row.values())

    def _digits_of(self, key: str) -> tuple[int, int] | None:
        """Return the same for one key; None if it has too few numbers to show its rounding."""
        numbers = [row[key] for row in self.rows.values() if key in row]
        texts = {number.text for number in numbers if number.digits is not None}
        most = _max_digits(numbers)
        return most if len(texts) >= OWN_NUMBERS and most[0] >= OWN_DECIMALS else None


def _max_digits(numbers: Iterable[LoggedNumber]) -> tuple[int, int]:
    shown = [digits for number in numbers if (digits := number.digits) is not None]
    return max((d for d, _ in shown), default=0), max((s for _, s in shown), default=0)


class NoNumbersError(RcdiagError):
    """A file that can be read as a log but has no number, such as one with nulls alone."""


def _listed(lines: Sequence[int]) -> str:
    """Name lines: `line 23`, or `lines 3, 4, 9 and 12 more`."""
    return f"{'line' if len(lines) == 1 else 'lines'} {listed(lines, SHOWN_LINES)}"


def log_of(path: Path, format: str, records: Iterable[Record], step_key: str | None = None) -> Log:
    """Group records by training step; the last number counts if a step has a key twice.

    `step_key` is the key of the step, where it is none of STEP_KEYS.

    Where the records go back to the first step, or the reader says so, another run begins: the last
    one is returned, with those before it as `earlier`. RcdiagError if more than MOST_UNREADABLE of
    the lines cannot be read; NoNumbersError if the others have no number but steps.
    """
    bad: list[UnreadableLine] = []
    short: list[int] = []
    by_run: list[tuple[str, list[Mapping[str, Any]]]] = [("", [])]
    for record in records:
        if isinstance(record, RunStart):
            by_run.append((record.name, []))
        elif isinstance(record, UnreadableLine):
            bad.append(record)
        elif isinstance(record, ShortLine):
            short.append(record.number)
        else:
            by_run[-1][1].append(record)
    lines = len(bad) + max(len(rows) for _, rows in by_run)  # runs may share their lines
    if len(bad) > MOST_UNREADABLE * lines:
        which = _listed([line.number for line in bad])
        raise RcdiagError(
            f"{path}: {len(bad)} of {plural(lines, 'line')} cannot be read: {which} "
            f"({bad[0].reason})",
            hint="a line has the numbers of one step: an object in JSON lines, in CSV as many "
            "values as the first line has names; copy the log again",
        )
    logs = [
        replace(log, run=run)
        for run, rows in by_run
        for log in _grouped(path, format, rows, step_key)
        if log.keys
    ]
    if not logs:
        raise NoNumbersError(
            f"{path}: no numbers in it (read as {format})",
            hint="a log has a row for each training step, with numbers; a dump has lists of token "
            "ids and log-probs",
        )
    if step_key is not None and all(log.counted or list(log.rows) == [None] for log in logs):
        keys = listed(list(dict.fromkeys(key for log in logs for key in log.keys)), SHOWN_KEYS)
        raise RcdiagError(
            f"{path}: no row has a whole number under {step_key!r}, the key of the step",
            hint=f"it has {keys}",
        )
    *earlier, last = logs
    unreadable = tuple(line.number for line in bad)
    return replace(
        last, earlier=tuple(earlier), unreadable=unreadable, short=tuple(short), lines=lines
    )


def _grouped(
    path: Path, format: str, records: Sequence[Mapping[str, Any]], step_key: str | None
) -> list[Log]:
    flat = [row for record in records if (row := dict(_flat(record)))]
    steps = _steps(flat, step_key)
    updates = _updates_of_rollout(flat) if step_key is None else 1
    if updates > 1:
        steps = [
            step // updates if step is not None and OF_UPDATES in row else step
            for step, row in zip(steps, flat, strict=True)
        ]
    flat = [{key: number for key, number in row.items() if key != step_key} for row in flat]
    counted = len(flat) > 1 and all(step is None for step in steps)
    if counted:
        rows: dict[int | None, Row] = {
            place: _without_step(row) for place, row in enumerate(flat, 1)
        }
        return [Log(path, format, rows, counted)]
    if len(flat) == 1:
        return [Log(path, format, {steps[0]: _without_step(flat[0])})]
    # Other rows are summaries of the whole run.
    runs = [_OneRun()]
    for step, row in zip(steps, flat, strict=True):
        if step is not None:
            if runs[-1].ends_before(step, row):
                runs.append(_OneRun())
            runs[-1].add(step, row)
    return [replace(run.log(path, format), updates=updates) for run in runs]


class _OneRun:
    """The rows of one run, in the order of the file."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, LoggedNumber]] = {}
        self.latest: dict[str, int] = {}  # key -> the last step at which it was logged
        self.resumed: list[int] = []
        self.repeated: list[int] = []
        self.rewritten: list[int] = []  # steps with a second row of other values behind the first

    def _goes_back(self, step: int, row: Row) -> bool:
        # Rows with other keys, such as those of an evaluation, may have their own counter.
        return any(self.latest.get(key, step) > step for key in row)

    def ends_before(self, step: int, row: Row) -> bool:
        """Tell whether a row is the first of another run: it repeats this run's first step."""
        first = min(self.rows, default=step)
        repeats = step == first and not self.rows.get(step, {}).keys().isdisjoint(row)
        return repeats and len(self.rows) >= STEPS_OF_A_RUN and self._goes_back(step, row)

    def add(self, step: int, row: Row) -> None:
        if self._goes_back(step, row):
            self.resumed.append(step)
        numbers, new = self.rows.setdefault(step, {}), _without_step(row)
        again = [key for key in new if key in numbers and not key.startswith("_")]  # W&B's clocks
        if 2 * len(again) > len(new) and any(numbers[key] != new[key] for key in again):
            self.rewritten.append(step)
        if self.resumed and not numbers.keys().isdisjoint(new):
            self.repeated.append(step)
        numbers |= new
        self.latest |= dict.fromkeys(row, step)

    def log(self, path: Path, format: str) -> Log:
        steps = sorted(self.rows)
        # A single step with two rows is one that a resumed run lost and logs again. Where one
        # follows another, several processes log each step.
        known = {*self.rewritten, *self.repeated}
        lost = [
            step
            for before, step, after in zip([None, *steps], steps, [*steps[1:], None], strict=False)
            if step in self.rewritten and before not in known and after not in known
        ]
        return Log(
            path,
            format,
            {step: self.rows[step] for step in steps},
            resumed=(*self.resumed, *lost),
            repeated=tuple(sorted({*self.repeated, *lost})),
        )


def _without_step(row: Row) -> dict[str, LoggedNumber]:
    return {
        key: number for key, number in row.items() if key.lower() not in (*STEP_KEYS, STEP_OF_ALL)
    }


def _steps(rows: Sequence[Row], step_key: str | None) -> list[int | None]:
    """Return the step of each row.

    A log may have the key of the step in a row of its own, as TensorBoard has every number. Such
    rows have a counter of the logger too: rows with one value of that are of one step.
    """
    by_logger = [_step_of({key.lower(): number for key, number in row.items()}) for row in rows]
    if step_key is None:
        return by_logger
    named = [_step_of(row, (step_key,)) for row in rows]
    pairs = zip(by_logger, named, strict=True)
    known = {counter: step for counter, step in pairs if None not in (counter, step)}
    return [
        known.get(counter) if step is None else step
        for counter, step in zip(by_logger, named, strict=True)
    ]


def _updates_of_rollout(rows: Sequence[Row]) -> int:
    """Return how many updates are made of each rollout; 1 where the log does not count both."""
    updates = [_step_of(row, (OF_UPDATES,)) for row in rows]
    rollouts = [_step_of(row, OF_ROLLOUTS) for row in rows if OF_UPDATES not in row]
    last_update, last_rollout = (
        max((step for step in steps if step is not None and step >= 0), default=None)
        for steps in (updates, rollouts)
    )
    if last_update is None or last_rollout is None:
        return 1
    return -(-(last_update + 1) // (last_rollout + 1))


def _step_of(row: Row, names: Sequence[str] = (*STEP_KEYS, STEP_OF_ALL)) -> int | None:
    """Return the first whole number under one of the names."""
    for name in names:
        value = row[name].value if name in row else math.nan
        if abs(value) < LARGEST_STEP and value == int(value):
            return int(value)
    return None


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, LoggedNumber]]:
    """Yield the numbers of a record; keys of nested mappings are joined with a slash."""
    for name, value in record.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            # verl's file logger nests all numbers under `data`.
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


HEAD = 4096  # bytes from which readers recognise their format


class LogFile(Struct, frozen=True):
    """A file, perhaps compressed, or a folder of TensorBoard event files, of unknown format."""

    path: Path
    head: bytes  # the first bytes; empty for a folder

    @classmethod
    def at(cls, path: Path) -> LogFile:
        """Open the path that a user named; RcdiagError if it is missing, empty or unreadable."""
        try:
            if path.is_dir():
                return cls(path, b"")
            path = unpacked(path)
            with path.open("rb") as stream:
                head = stream.read(HEAD)
        except OSError as error:
            raise RcdiagError(
                f"{path}: cannot be read ({error.strerror or error})",
                hint="give the log that the trainer wrote: JSONL, CSV, an exported W&B history or "
                "TensorBoard events, or what the run printed",
            ) from error
        if not head.strip():
            raise RcdiagError(f"{path}: empty", hint="give a log with at least one step")
        return cls(path, head)

    def text(self) -> str:
        """Return the whole file as text; RcdiagError if it is not UTF-8."""
        try:
            return self.path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise RcdiagError(
                f"{self.path}: not text in UTF-8 (byte {error.start})", hint="write it as UTF-8"
            ) from error

    @property
    def first_line(self) -> str:
        """Return the first line that is not blank; "" if the file is not text."""
        return next(iter(self.first_lines), "")

    @property
    def first_lines(self) -> list[str]:
        """Return the first two lines that are not blank; none if the file is not text."""
        if b"\0" in self.head:
            return []
        try:
            with self.path.open(encoding="utf-8-sig") as stream:
                return list(islice((line.strip() for line in stream if line.strip()), 2))
        except (OSError, UnicodeDecodeError):
            return []


class LogReader(Struct, frozen=True, kw_only=True):
    """A format of trainers' logs."""

    name: str
    says: str  # the programs that write it, in short
    detect: Callable[[LogFile], bool]  # whether a file is of this format
    # Yields the rows of the log: key -> value. Numbers that the file has as text should be
    # `LoggedNumber`s, which keep their digits. Values may be nested mappings; others are ignored.
    read: Callable[[LogFile], Iterator[Record]]

    def entry(self) -> Entry:
        """Answer `rcdiag explain`: who writes logs of this format, and how to read one."""
        return Entry(
            what=f"A trainer's own log that `rcdiag score --logged` reads: {self.says}.",
            example="rcdiag score rollouts.parquet --logged FILE",
            see=("log_format", "theirs"),
        )
