"""Columns in other names are taken where their names and first rows leave no doubt.

A table lacks a column and has one by a name that trainers or engines give to it. It is taken if no
second column has such a name, its type is read, and its lists are as long as the response; else the
doubt is kept, for the error or finding that names the column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.table.arrow import as_numpy, lengths_of, values_of
from rcdiag.table.column_names import (
    LOOKS_LIKE_LOG_PROBS,
    KnownName,
    known_names,
    meanings_of,
    names_for,
)
from rcdiag.table.padding import (
    PADDED_ROWS,
    Padding,
    find_padding,
    masks_padding,
    refusal,
)
from rcdiag.table.readers.footer import RowGroup
from rcdiag.table.readers.parquet import (
    first_rows_of,
    open_parquet,
    row_groups_of,
    width_of_first_rows,
)
from rcdiag.table.remote import AnyFile
from rcdiag.table.schema import (
    COLUMNS,
    LOG_PROBS,
    TOKEN_FLOATS,
    column_spec,
    is_list,
    versions_are_numbers,
)

TOKENS, PROMPT, MASK = "response_ids", "prompt_ids", "response_mask"
# Log-prob columns for which names of other programs are known.
POLICIES = ("rollout_log_probs", "old_log_probs", "current_log_probs")
# Log-prob columns with these prefixes are not those of response tokens.
OF_PROMPTS = ("prompt", "input", "cumulative")
# Some programs call the advantage per row `advantages`, or the advantages per token `advantage`.
ADVANTAGES = ("advantage", "advantages")
# A prompt that begins with at least this many equal tokens is padded on the left.
LEFT_PADDING = 3


class Doubt(Struct, frozen=True):
    """A column whose name may mean a canonical column, and why it is not used as that."""

    column: str
    why: str
    refuted: bool = False  # the first rows prove that it is something else


class Naming(Struct, frozen=True):
    """Which columns of a file are read under another name, because rcdiag knows their names."""

    taken: Mapping[str, str] = field(default_factory=dict)  # canonical name -> name in the file
    doubts: Mapping[str, tuple[Doubt, ...]] = field(default_factory=dict)  # by canonical name
    off: frozenset[str] = frozenset()  # canonical columns that must not be looked for
    padding: Padding | None = None  # set if rows are padded, with the column that masks it

    def sentence(self) -> str:
        """List the renamed columns and the programs that use these names; empty if none."""
        said = []
        for name, own in self.taken.items():
            known = meanings_of(own).get(name)
            users = f" ({known.users})" if known is not None and known.users else ""
            said.append(f"`{name}` from `{own}`{users}")
        return ", ".join(said)

    @property
    def programs(self) -> set[str]:
        """Return the programs that write one of the renamed columns, where no other program does.

        They are spelled as on a command line: `nemo-rl` for NeMo RL.
        """
        known = [meanings_of(own).get(name) for name, own in self.taken.items()]
        return {
            one.programs[0].lower().replace(" ", "-")
            for one in known
            if one is not None and len(one.programs) == 1
        }


class FirstRows:
    """Columns of lists in the first rows of a file, as numpy arrays; they are read when needed."""

    def __init__(self, path: AnyFile, names: Sequence[str]) -> None:
        self._path = path
        self.names = names

    @cached_property
    def _table(self) -> pa.Table:
        return first_rows_of(self._path, self.names, PADDED_ROWS)

    def lengths(self, name: str) -> NDArray[np.int64]:
        """Return the length of each list, -1 for a null; [rows]."""
        return lengths_of(self._table.column(name), of_null=-1)

    def values(self, name: str) -> NDArray[Any]:
        """Return the concatenated values of all lists; null becomes NaN or is refused."""
        chunks = self._table.column(name).combine_chunks()
        return as_numpy(values_of(chunks))

    def rows(self, name: str) -> list[NDArray[Any]]:
        """Return the values of each list; a null is an empty array."""
        ends = np.cumsum(np.maximum(self.lengths(name), 0))
        return np.split(self.values(name), ends[:-1]) if len(ends) else []


def has_tokens(schema: pa.Schema, renames: Mapping[str, str]) -> bool:
    """Tell whether a file has a column of tokens, by the user's mapping or by a known name."""
    return renames.get(TOKENS, TOKENS) in schema.names or any(
        TOKENS in meanings_of(field.name) and _fits(TOKENS, field)
        for field in schema
        if column_spec(field.name) is None
    )


def columns_to_look_at(schema: pa.Schema, renames: Mapping[str, str]) -> list[str]:
    """Return the columns whose first rows are needed to choose names and to detect padding."""
    back = {own: name for name, own in renames.items()}
    return [
        field.name
        for field in schema
        if is_list(field.type)
        and pt.is_primitive(field.type.value_type)
        and (
            back.get(field.name, field.name) in (TOKENS, PROMPT, MASK)
            or LOG_PROBS.fullmatch(back.get(field.name, field.name))
            or LOOKS_LIKE_LOG_PROBS.search(field.name)
            or "mask" in field.name
            or meanings_of(field.name)
        )
    ]


def _fits(column: str, field: pa.Field) -> bool:
    spec = column_spec(column)
    kind = versions_are_numbers(pa.schema([field.with_name(column)])).field(0).type
    return spec is not None and spec.accepts(kind)


def naming_of(
    path: AnyFile, shown: AnyFile, renames: Mapping[str, str], off: frozenset[str]
) -> Naming:
    """Choose which columns of a parquet file are read under names that the user did not map.

    `renames` is the user's mapping; `off` are canonical columns that must not be looked for.
    Messages call the file `shown`. Only the footer is read, unless the file has columns with known
    names or rows of equal lengths: then its first rows are read too.
    """
    schema, groups = open_parquet(path).schema_arrow, row_groups_of(path)
    first = FirstRows(path, columns_to_look_at(schema, renames))
    naming = _Search(schema, renames, first, null_counts(groups), off).naming()
    return _with_padding(shown, first, schema, groups, {**renames, **naming.taken}, naming)


def _with_padding(
    shown: AnyFile,
    first: FirstRows,
    schema: pa.Schema,
    groups: Sequence[RowGroup],
    names: Mapping[str, str],
    naming: Naming,
) -> Naming:
    """Detect padded rows and choose the mask that removes the padding; else refuse the file.

    `names` maps canonical names to those in the file.
    """
    columns = _PaddedColumns.of(schema, names)
    if columns is None or not width_of_first_rows(groups, columns.tokens, PADDED_ROWS):
        return naming
    log_probs = [first.rows(name) for name in columns.log_probs]
    found = find_padding(first.rows(columns.tokens), log_probs)
    if found is None:
        return naming
    padding, tails = found
    fitting = [
        name
        for name in columns.masks
        if name != columns.tokens and masks_padding(first.rows(name), tails)
    ]
    if columns.mask is not None and MASK not in naming.taken:  # the table's own mask
        fits = columns.mask in fitting
        return replace(naming, padding=replace(padding, mask=columns.mask)) if fits else naming
    if naming.taken.get(MASK) in fitting:
        fitting = [naming.taken[MASK]]
    if len(fitting) != 1 or MASK in naming.off:
        raise refusal(str(shown), padding, columns.tokens, columns.log_probs, fitting)
    taken = {**naming.taken, MASK: fitting[0]}
    return replace(naming, taken=taken, padding=replace(padding, mask=fitting[0]))


class _PaddedColumns(Struct, frozen=True):
    """The columns of a file that show whether its rows are padded, by their names in the file."""

    tokens: str
    log_probs: list[str]  # those of the rollout and old policies, where the file has both
    masks: list[str]  # columns that may be a mask
    mask: str | None  # the one that is read as `response_mask`

    @classmethod
    def of(cls, schema: pa.Schema, names: Mapping[str, str]) -> _PaddedColumns | None:
        """Find the columns; `names` maps canonical names to those in the file. None: no tokens."""
        back = {own: name for name, own in names.items()}
        # A column is not read under its own name if another one is mapped to that name.
        read = [field for field in schema if field.name in back or field.name not in names]
        own = {back.get(field.name, field.name): field for field in read}
        if TOKENS not in own or not _fits(TOKENS, own[TOKENS]):
            return None
        policies = [name for name in own if LOG_PROBS.fullmatch(name) and _fits(name, own[name])]
        if set(POLICIES[:2]) <= set(policies):
            policies = list(POLICIES[:2])
        looked_at = columns_to_look_at(schema, names)
        return cls(
            tokens=own[TOKENS].name,
            log_probs=[own[name].name for name in policies],
            masks=[name for name in looked_at if _fits(MASK, schema.field(name))],
            mask=own[MASK].name if MASK in own else None,
        )


def null_counts(groups: Sequence[RowGroup]) -> dict[str, int]:
    """Count the nulls in columns of single values, from the footer."""
    counts: dict[str, int] = {}
    for group in groups:
        for chunk in group.columns:
            if chunk.null_count is not None:
                counts[chunk.path] = counts.get(chunk.path, 0) + chunk.null_count
    return counts


class _Search:
    """The search for canonical columns among a file's other columns.

    `schema` has the file's own names, `renames` is the user's mapping, `first` holds the columns of
    `columns_to_look_at`, `nulls` the null count of columns of single values, if known.
    """

    def __init__(
        self,
        schema: pa.Schema,
        renames: Mapping[str, str],
        first: FirstRows,
        nulls: Mapping[str, int],
        off: frozenset[str],
    ) -> None:
        self.schema, self.first, self.nulls, self.off = schema, first, nulls, off
        self.own = {field.name: field.name for field in schema if column_spec(field.name)}
        self.own.update(renames)  # rcdiag's name -> the file's
        self.free = [
            field
            for field in schema
            if field.name not in renames.values() and column_spec(field.name) is None
        ]
        self.taken: dict[str, str] = {}
        self.doubts: dict[str, list[Doubt]] = {}

    def naming(self) -> Naming:
        """Look for each missing column; tokens first, as the others are checked against them."""
        self._by_type()
        for column in dict.fromkeys((TOKENS, *POLICIES, PROMPT, *known_names(), *COLUMNS)):
            if column not in self.own and column not in self.off:
                self._look_for(column)
        doubts = {column: tuple(doubts) for column, doubts in self.doubts.items()}
        return Naming(self.taken, doubts, self.off)

    def _by_type(self) -> None:
        """Rename `advantage` and `advantages` if their type fits the other name."""
        for column, other in (ADVANTAGES, ADVANTAGES[::-1]):
            index = self.schema.get_field_index(other)
            if index < 0 or column in self.own or {column, other} & self.off:
                continue
            kind = self.schema.field(index).type
            if COLUMNS[column].accepts(kind) and not COLUMNS[other].accepts(kind):
                del self.own[other]
                self.taken[column] = self.own[column] = other

    def _look_for(self, column: str) -> None:
        """Use the one column that has a known name for `column` and passes every check."""
        sure: list[KnownName] = []
        for field_ in self.free:
            known = meanings_of(field_.name).get(column)
            if known is None or (not _fits(column, field_) and column not in POLICIES):
                continue
            if _fits(column, field_):
                doubt = self._doubt(known)
            else:
                why = f"its type is {field_.type}, and log-probs are lists of floats"
                doubt = Doubt(known.name, why, refuted=True)
            if doubt is None:
                sure.append(known)
            else:
                self.doubts.setdefault(column, []).append(doubt)
        # A name that always means the response alone is preferred.
        sure = [known for known in sure if not known.whole] or sure
        if len(sure) == 1:
            own = sure[0].name
            self.taken[column] = self.own[column] = own
            self.free = [field for field in self.free if field.name != own]
        elif sure:
            both = " and ".join(f"`{known.name}`" for known in sure)
            for known in sure:
                doubt = Doubt(known.name, f"{both} both have a name for it")
                self.doubts.setdefault(column, []).append(doubt)

    def _doubt(self, known: KnownName) -> Doubt | None:
        """Return why a column with a known name cannot be used; None if all checks pass."""
        if known.doubt:
            return Doubt(known.name, known.doubt)
        if known.beside and not set(known.beside) & set(self.schema.names):
            return Doubt(known.name, "its name does not say whose log-probs it holds")
        others = [name for name in self._log_probs() if name != known.name]
        if known.alone and others:
            named = ", ".join(f"`{name}`" for name in others)
            return Doubt(
                known.name, f"its name does not say whose log-probs it holds, beside {named}"
            )
        if known.column == TOKENS:
            return self._doubt_of_tokens(known)
        if known.column == PROMPT:
            return self._doubt_of_prompt(known)
        if COLUMNS.get(known.column, TOKEN_FLOATS) is TOKEN_FLOATS or known.column == MASK:
            return self._doubt_of_lists(known)
        if count := self.nulls.get(known.name, 0):
            return Doubt(known.name, f"{count} of its rows are null")
        return None

    def _log_probs(self) -> list[str]:
        """Return the file's columns that may hold log-probs of response tokens."""
        mapped = {own for name, own in self.own.items() if LOG_PROBS.fullmatch(name)}
        return [
            name
            for name in self.first.names
            if TOKEN_FLOATS.accepts(self.schema.field(name).type)
            and (name in mapped or LOOKS_LIKE_LOG_PROBS.search(name))
            and not name.startswith(OF_PROMPTS)
        ]

    def _doubt_of_tokens(self, known: KnownName) -> Doubt | None:
        """Compare list lengths with those of log-probs, which only response tokens have."""
        name, lengths = known.name, self.first.lengths(known.name)
        for other in self._log_probs():
            if differ := _other_lengths(lengths, self.first.lengths(other)):
                row, mine, others = differ
                more = "it holds the prompt too: " if known.whole and mine > others else ""
                why = f"{more}row {row} has {mine} tokens there, and {others} values in `{other}`"
                return Doubt(name, why, refuted=True)
        if not known.whole:
            return None
        if not self._log_probs():
            return Doubt(name, "it may include the prompt, and no log-probs show its length")
        return self._prompt_inside(name)

    def _prompt_inside(self, name: str) -> Doubt | None:
        """Check by prompt ids, a mask or zero log-probs whether rows begin with their prompt."""
        prompts = self.own.get(PROMPT) or next(
            (other for other in names_for(PROMPT) if other in self.first.names), None
        )
        rows = self.first.rows(name)
        if prompts is not None and prompts in self.first.names:
            pairs = zip(rows, self.first.rows(prompts), strict=True)
            if any(len(p) and np.array_equal(row[: len(p)], p) for row, p in pairs):
                return Doubt(name, f"its rows begin with the tokens of `{prompts}`", refuted=True)
        masks = [
            name
            for name in self.first.names
            if "mask" in name and _fits(MASK, self.schema.field(name))
        ]
        for other in [*self._log_probs(), *masks]:
            starts = [len(row) > 2 and not row[:2].any() for row in self.first.rows(other)]
            if 2 * sum(starts) > len(starts):
                return Doubt(
                    name, f"it may begin with the prompt: `{other}` is 0 at the first tokens"
                )
        return None

    def _doubt_of_prompt(self, known: KnownName) -> Doubt | None:
        """Refuse prompts that are padded on the left to a common length."""
        lengths = self.first.lengths(known.name)
        if (lengths < 0).any():
            return Doubt(known.name, f"row {int(np.argmax(lengths < 0))} is null")
        if len(lengths) < 2 or (lengths != lengths[0]).any() or lengths[0] < LEFT_PADDING:
            return None
        begins = [bool((row[:LEFT_PADDING] == row[0]).all()) for row in self.first.rows(known.name)]
        if 4 * sum(begins) >= len(begins):
            return Doubt(
                known.name,
                f"its rows are padded on the left to {lengths[0]} tokens: write them without the "
                f"padding as `{PROMPT}`",
                refuted=True,
            )
        return None

    def _doubt_of_lists(self, known: KnownName) -> Doubt | None:
        """Compare the lengths of a column of lists, one value per token, with the tokens."""
        tokens = self.own.get(TOKENS)
        if tokens is None or tokens not in self.first.names:
            return None  # the table will be refused, or its token column has another name
        mine, others = self.first.lengths(known.name), self.first.lengths(tokens)
        if differ := _other_lengths(mine, others):
            row, count, wanted = differ
            what = f"row {row} has {count} values there, and {wanted} tokens in `{tokens}`"
            return Doubt(known.name, f"row {row} is null" if count < 0 else what, refuted=True)
        if known.column != MASK:
            return None
        values = self.first.values(known.name)
        if not np.isin(values, (0, 1)).all():
            return Doubt(known.name, "it holds values other than 0 and 1", refuted=True)
        if len(values) and not values.any():
            return Doubt(known.name, f"it is 0 in all of the first {len(mine)} rows")
        return None


def _other_lengths(
    mine: NDArray[np.int64], others: NDArray[np.int64]
) -> tuple[int, int, int] | None:
    """Return the first row whose lengths differ, with both lengths; None if all are equal."""
    differ = (mine != others) | (mine < 0)
    if not differ.any():
        return None
    row = int(np.argmax(differ))
    return row, int(mine[row]), int(others[row])
