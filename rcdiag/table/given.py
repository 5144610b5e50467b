"""Values that the user gives because a dump lacks them; they hold for every row (temperature)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError, did_you_mean, mapping_setting
from rcdiag.table.arrow import as_numpy, lengths_of
from rcdiag.table.schema import is_list

GROUP_SIZE = "group_size"
# Which entry is the reward, if a dump holds a dictionary of rewards. Only used by readers.
REWARD_KEY = "reward_key"


class GivenKind(Struct, frozen=True):
    """What a value may be: its Arrow type, in words, its parser, and its range."""

    type: pa.DataType
    expected: str
    read: Callable[[Any], Any]
    accepts: Callable[[Any], bool] = lambda value: True


def _whole(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(str(value))


def _number_or_name(value: Any) -> int | str:
    text = str(value)
    return int(text) if text.lstrip("-").isdecimal() else text


_FRACTION = GivenKind(
    pa.float64(), "a number from 0 to 1", float, lambda value: 0.0 <= value <= 1.0
)
_COUNT = GivenKind(pa.int64(), "a whole number", _whole)
GIVEN: dict[str, GivenKind] = {
    "temperature": GivenKind(
        pa.float64(), "a number above 0", float, lambda value: 0.0 < value < float("inf")
    ),
    "top_p": _FRACTION,
    "top_k": _COUNT,
    "min_p": _FRACTION,
    "learning_rate": GivenKind(
        pa.float64(), "a number, 0 or more", float, lambda value: 0.0 <= value < float("inf")
    ),
    "step": _COUNT,
    "policy_version": _COUNT,
    "engine": GivenKind(pa.string(), "a name or a number", _number_or_name),
    "finish_reason": GivenKind(pa.string(), "a word", str),
    GROUP_SIZE: GivenKind(
        pa.int64(), "a whole number, 1 or more", _whole, lambda value: value >= 1
    ),
    REWARD_KEY: GivenKind(pa.string(), "the name of a number among the rewards", str, bool),
}


def read_given(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return given values with the types of their columns; text is parsed as in the options."""
    return {name: _read(name, value) for name, value in (values or {}).items()}


def _read(name: str, value: Any) -> Any:
    if name not in GIVEN:
        raise RcdiagError(
            f"{_setting(name, value)}: this cannot be given for all rows",
            hint=f"{did_you_mean(name, GIVEN)}one of {', '.join(GIVEN)}",
        )
    kind = GIVEN[name]
    try:
        typed = kind.read(value)
        good = not isinstance(value, bool) and kind.accepts(typed)
    except (TypeError, ValueError):
        good = False
    if not good:
        raise RcdiagError(
            f"{_setting(name, value)}: not {kind.expected}", hint=f"give {kind.expected}"
        )
    return typed


def _setting(name: str, value: Any) -> str:
    return mapping_setting("given", {name: value}, "--given")


def of_all_rows(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given values that are values of every row: all but `reward_key`, `group_size`."""
    return {name: value for name, value in given.items() if name not in (REWARD_KEY, GROUP_SIZE)}


def check_choices(given: Mapping[str, Any], read_by: Sequence[str], dump: str) -> None:
    """Raise an error if `reward_key` is given for a dump whose reader does not use it.

    `read_by` names the given values that the reader uses itself.
    """
    if REWARD_KEY in given and REWARD_KEY not in read_by:
        raise RcdiagError(
            f"{_setting(REWARD_KEY, given[REWARD_KEY])}: {dump} has no dictionaries of rewards",
            hint="leave it out; --column reward=NAME reads another column as the reward",
        )


def column_of(name: str) -> str:
    """Return the column that a given value fills."""
    return "group_id" if name == GROUP_SIZE else name


def type_of(name: str, value: Any) -> pa.DataType:
    """Return the Arrow type of the column that a given value fills."""
    return pa.int64() if isinstance(value, int) else GIVEN[name].type


def filled(table: pa.Table, given: Mapping[str, Any], numbers: NDArray[np.integer]) -> pa.Table:
    """Return rows with given columns added, and with nulls replaced by given values.

    `numbers` [rows] are the row numbers in the whole table, which determine consecutive groups.
    """
    import pyarrow.compute as pc

    for name, value in given.items():
        column = column_of(name)
        if column in table.column_names:
            index = table.column_names.index(column)
            # The rows whose own value is null or NaN.
            own = table[column]
            lacking = own.is_null(nan_is_null=pt.is_floating(own.type))
            if name != GROUP_SIZE and pc.any(lacking).as_py():
                own = pc.if_else(lacking, pa.scalar(value).cast(own.type), own)
                table = table.set_column(index, column, own)
        else:
            values = numbers.astype(np.int64) // value if name == GROUP_SIZE else None
            own = pa.repeat(pa.scalar(value, type_of(name, value)), len(numbers))
            table = table.append_column(column, own if values is None else pa.array(values))
    return table


def check_agreement(table: pa.Table, given: Mapping[str, Any], where: Callable[[int], str]) -> None:
    """Raise an error if a row's own value differs from the given one; `where` names a row.

    Group sizes need the whole table: see `check_group_sizes`.
    """
    for name, value in given.items():
        if name != GROUP_SIZE and name in table.column_names:
            others = _other_values(table[name], value)
            if len(others):
                row = int(others[0])
                raise RcdiagError(
                    f"{where(row)}: `{name}` is {table[name][row].as_py()}, but "
                    f"{_setting(name, value)} is given",
                    hint="give a value only if the dump has none; leave it out",
                )


def _other_values(column: pa.ChunkedArray, value: Any) -> NDArray[np.integer]:
    """Return the rows of a column whose value differs, ascending; null does not differ."""
    import pyarrow.compute as pc

    if is_list(column.type):
        lengths = lengths_of(column)
        differ = as_numpy(pc.not_equal(pc.list_flatten(column), value)).astype(np.bool_)
        return np.repeat(np.arange(len(lengths)), lengths)[differ]
    if pt.is_floating(column.type):
        own = as_numpy(column).astype(np.float64)
        return np.flatnonzero(~(np.isclose(own, value, rtol=1e-6) | np.isnan(own)))
    if not (pt.is_integer(column.type) and isinstance(value, (int, float))):
        column, value = column.cast(pa.string()), str(value)
    return np.flatnonzero(as_numpy(pc.fill_null(pc.not_equal(column, value), False)))


def check_group_sizes(sizes: NDArray[np.integer], size: int, source: str) -> None:
    """Raise an error if prompt groups of a dump do not have the given size."""
    if (sizes != size).any():
        wrong = int(sizes[np.argmax(sizes != size)])
        raise RcdiagError(
            f"{source}: {int((sizes != size).sum())} of {len(sizes)} prompt groups do not have "
            f"the size {_setting(GROUP_SIZE, size)}; the first of them has {wrong} rows",
            hint="the dump's own group ids are used; leave the option out",
        )


def check_divisible(rows: int, size: int, source: str) -> None:
    """Raise an error if the number of rows is not a multiple of the group size."""
    if rows % size:
        raise RcdiagError(
            f"{source}: {rows:,} rows are not a whole number of groups of "
            f"{_setting(GROUP_SIZE, size)}; {rows % size} are left over",
            hint="was the dump filtered? Leave the option out, or give the right size",
        )
