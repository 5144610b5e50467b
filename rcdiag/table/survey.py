"""Questions about all rows of a table, each answered by one scan of the columns that it needs.

They are about small columns (steps, rewards, prompt groups, sample ids), rows without recorded
log-probs, the size of a table that a model is to score, and single rows by their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError, setting
from rcdiag.table.arrow import as_numpy
from rcdiag.table.kept_ids import check_all_recorded
from rcdiag.table.schema import KEPT_IDS
from rcdiag.table.stream import columns_needed, decode, floats, hashed, token_ids
from rcdiag.table.table import RowBatch, RowRange, Table
from rcdiag.table.trajectories import ModelLimits, Ragged, Trajectories

# The most frequent token ids are counted over this many tokens.
TOKENS_COUNTED = 2_000_000
# Number of rows that are listed per policy.
FIRST_ROWS = 10


# Columns of all rows, and single rows


def known_steps(dump: Table) -> list[int]:
    """Return the training steps of a table, ascending; empty if it has no column `step`."""
    if "step" not in dump.schema.names:
        return []
    steps: set[int] = set()
    for batch in dump.batches(["step"]):
        values = as_numpy(batch.table.column("step").drop_null())
        steps.update(np.unique(values).tolist())
    return sorted(steps)


def read_groups_and_rewards(
    dump: Table,
) -> tuple[NDArray[np.uint64] | None, NDArray[np.float64]]:
    """Return every row's prompt group as a hash (None: no groups) and reward (NaN: unknown)."""
    names = [name for name in ("group_id", "reward") if name in dump.schema.names]
    groups, rewards = [], []
    for batch in dump.batches(names) if names else ():
        if "group_id" in names:
            groups.append(hashed(batch, "group_id"))
        if "reward" in names:
            rewards.append(floats(batch, "reward"))
    return (
        np.concatenate(groups) if groups else None,
        np.concatenate(rewards) if rewards else np.full(dump.num_rows, np.nan),
    )


def number_groups(groups: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the distinct hashes of prompt groups, ascending, and the number of each.

    Groups are numbered in order of first appearance, so that numbers do not depend on their names.
    """
    keys, first = np.unique(groups, return_index=True)
    numbers = np.empty(len(keys), np.uint64)
    numbers[np.argsort(first)] = np.arange(len(keys), dtype=np.uint64)
    return keys, numbers


def frequent_ids(dump: Table) -> NDArray[np.int32]:
    """Return the distinct ids among the first TOKENS_COUNTED response tokens, most frequent first.

    Ties are in order of first appearance, so that the result does not depend on the id values.
    """
    read, tokens = [], 0
    for batch in dump.batches(["response_ids"]):
        read.append(token_ids(batch, "response_ids").values)
        tokens += len(read[-1])
        if tokens >= TOKENS_COUNTED:
            break
    return by_frequency(np.concatenate(read)) if read else np.empty(0, np.int32)


def by_frequency(ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the distinct ids, most frequent first; ties in order of first appearance."""
    distinct, first, counts = np.unique(ids, return_index=True, return_counts=True)
    order: NDArray[np.intp] = np.lexsort((first, -counts))
    return distinct[order]


def read_rows(dump: Table, numbers: Collection[int]) -> dict[int, dict[str, Any]]:
    """Return the rows with these numbers (counted over the whole table), with all columns.

    The result maps row number -> column -> value, the form in which reward functions take rows.
    """
    by_number: dict[int, dict[str, Any]] = {}
    for batch in dump.batches(rows=np.unique(np.array(list(numbers), np.int64))):
        by_number |= dict(zip(batch.numbers.tolist(), batch.table.to_pylist(), strict=True))
    return by_number


def check_unique(dump: Table, ids: Sequence[NDArray[np.uint64]]) -> None:
    """Raise an error if a sample occurs twice, which would make confidence intervals too narrow.

    `ids` are hashes of all sample ids, one array [rows] per batch; empty if the table has no ids.
    """
    if ids:
        hashes = np.concatenate(ids)
        order = np.argsort(hashes, kind="stable")
        same = np.flatnonzero(np.diff(hashes[order]) == 0)
        if len(same):
            first, second = int(order[same[0]]), int(order[same[0] + 1])
            raise RcdiagError(
                f"{dump.where(second)}: column `sample_id` repeats the id of "
                f"{dump.where(first)} ({len(same)} repeated rows in all)",
                hint="was the dump appended to twice, or does a glob match a file and its copy?",
            )


# Rows without recorded log-probs


class Unobserved(Struct, frozen=True):
    """The rows of a table in which log-probs of at least one of some policies are null."""

    rows: int = 0
    by_policy: Mapping[str, int] = field(default_factory=dict)  # only policies with such rows
    first_rows: Mapping[str, list[int]] = field(default_factory=dict)  # row numbers in the table


def unobserved(table: Table, policies: Sequence[str]) -> Unobserved:
    """Count the rows of a table in which log-probs of some policies are null."""
    nulls = table.null_rows
    lacking = {policy: nulls[policy] for policy in policies if policy in nulls}
    if not lacking:
        return Unobserved()
    return Unobserved(
        len(np.unique(np.concatenate(list(lacking.values())))),
        {policy: len(rows) for policy, rows in lacking.items()},
        {policy: rows[:FIRST_ROWS].tolist() for policy, rows in lacking.items()},
    )


# Table sizes, and rows that no model can have scored


class Survey(Struct, frozen=True, kw_only=True):
    """The sizes of a table that passed the checks for scoring."""

    prompt_lengths: NDArray[np.int64]  # [sequences]
    response_lengths: NDArray[np.int64]  # [sequences]
    sampled_tokens: int  # unmasked response tokens
    rows_without_temperature: int
    ids_in_lists: int = 0  # ids in those columns with a list per token that engines read

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the number of prompt and response tokens of each sequence."""
        return self.prompt_lengths + self.response_lengths

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    def ranges(self, tokens: int) -> list[RowRange]:
        """Cut the rows into consecutive ranges of about `tokens` tokens and at least one row."""
        ends = np.cumsum(self.lengths)
        ranges: list[RowRange] = []
        start = 0
        while start < len(ends):
            before = ends[start - 1] if start else 0
            stop = int(np.searchsorted(ends, before + tokens, side="right"))
            ranges.append((start, max(stop, start + 1)))
            start = ranges[-1][1]
        return ranges


def survey(dump: Table, limits: Sequence[ModelLimits], reads: Collection[str] = ()) -> Survey:
    """Check every row against the models that are to score it, and measure the table.

    `reads` are columns that engines read in addition to tokens, mask and temperature.
    """
    dump.require("prompt_ids", *reads)
    names = [*columns_needed(dump.schema.names, (), prompts=True), *reads]
    if "sample_id" in dump.schema.names:
        names.append("sample_id")
    ids: list[NDArray[np.uint64]] = []
    prompts, responses, sampled, unknown, ids_in_lists = [], [], 0, 0, 0
    for batch in dump.batches(names):
        if "sample_id" in names:
            ids.append(hashed(batch, "sample_id"))
        rows = decode(batch)
        _check_rows(batch, rows)
        for limit in limits:
            check_limits(rows, limit, batch.where)
        for name, lists in rows.token_lists.items():
            ids_in_lists += len(lists.values)
            if KEPT_IDS.fullmatch(name):
                check_all_recorded(rows, name, batch.where)
                of_rows = Ragged(lists.values, lists.offsets[rows.response_ids.offsets])
                for limit in limits:
                    _check_ids(batch.where, name, of_rows, limit)
        assert rows.prompt_ids is not None
        prompts.append(rows.prompt_ids.lengths)
        responses.append(rows.response_ids.lengths)
        sampled += int(rows.mask.sum())
        unknown += len(rows) if rows.temperature is None else int(np.isnan(rows.temperature).sum())
    check_unique(dump, ids)
    if sampled == 0:
        raise RcdiagError(
            f"{dump.name}: no unmasked response token in the whole table",
            hint="response_mask is 1 for tokens that the policy sampled; is it inverted?",
        )
    return Survey(
        prompt_lengths=np.concatenate(prompts),
        response_lengths=np.concatenate(responses),
        sampled_tokens=sampled,
        rows_without_temperature=unknown,
        ids_in_lists=ids_in_lists,
    )


def check_limits(rows: Trajectories, limit: ModelLimits, where: Callable[[int], str]) -> None:
    """Refuse rows that a model cannot process; `where(row)` names a row of `rows` in errors."""
    assert rows.prompt_ids is not None
    _check_ids(where, "prompt_ids", rows.prompt_ids, limit)
    _check_ids(where, "response_ids", rows.response_ids, limit)
    lengths = rows.prompt_ids.lengths + rows.response_ids.lengths
    if limit.context is not None and (lengths > limit.context).any():
        row = int(np.argmax(lengths > limit.context))
        raise RcdiagError(
            f"{where(row)}: {lengths[row]} tokens in columns `prompt_ids` and "
            f"`response_ids`, but the context of {limit.model} is {limit.context}",
            hint="is it the model that sampled these rows? Otherwise drop the row",
        )
    other = rows.scoring_temperature != limit.temperature
    if limit.temperature is not None and other.any():
        row = int(np.argmax(other))
        raise RcdiagError(
            f"{where(row)}: column `temperature` is {rows.scoring_temperature[row]:g}, but "
            f"{limit.model} only gives log-probs at temperature {limit.temperature:g}",
            hint="score the checkpoint itself, which takes any temperature: vllm:bfloat16 or "
            f"hf:float32 with {setting('model', 'PATH')}",
        )


def _check_rows(batch: RowBatch, rows: Trajectories) -> None:
    """Refuse rows that no engine can score.

    Their temperature is invalid, their prompt is empty, or a sampling parameter is null, without
    which kept sets cannot be computed.
    """
    if rows.temperature is not None:
        bad = (rows.temperature <= 0) | np.isinf(rows.temperature)
        if bad.any():
            row = int(np.argmax(bad))
            raise RcdiagError(
                f"{batch.where(row)}: column `temperature` is {rows.temperature[row]}",
                hint="logits are divided by it; greedy samples have no sampling temperature: leave "
                "it null to score them at 1",
            )
    assert rows.prompt_ids is not None
    empty = (rows.prompt_ids.lengths == 0) & (rows.response_ids.lengths > 0)
    if empty.any():
        raise RcdiagError(
            f"{batch.where(int(np.argmax(empty)))}: column `prompt_ids` is empty; the first "
            "response token has nothing before it to be scored from",
            hint="store at least the beginning-of-sequence token as the prompt",
        )
    for name, values in rows.sampling.items():
        unknown = np.isnan(values)
        if unknown.any():
            raise RcdiagError(
                f"{batch.where(int(np.argmax(unknown)))}: column `{name}` is null, so that its "
                "kept sets are unknown",
                hint="write 1 for top_p, -1 for top_k and 0 for min_p where they were off",
            )


def _check_ids(where: Callable[[int], str], name: str, ids: Ragged, limit: ModelLimits) -> None:
    if limit.vocab_size is None:
        return
    bad = ids.values >= limit.vocab_size
    if bad.any():
        at = int(np.argmax(bad))
        raise RcdiagError(
            f"{where(ids.row_with(at))}: column `{name}` holds token id {ids.values[at]}, outside "
            f"the vocabulary of {limit.model} ({limit.vocab_size} tokens)",
            hint="is it the model that sampled these rows?",
        )
