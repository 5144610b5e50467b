"""A survey passes over the token ids before an engine starts, and finds sizes and bad rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.batches import Batch
from rcdiag.table.decode import columns_needed, decode
from rcdiag.table.stream import RowRange, UniqueSampleIds
from rcdiag.table.table import Table
from rcdiag.table.trajectories import ModelLimits, Ragged, Trajectories


class Survey(Struct, frozen=True, kw_only=True):
    """The sizes of a table that is fit to be scored."""

    prompt_lengths: NDArray[np.int64]  # [sequences]
    response_lengths: NDArray[np.int64]  # [sequences]
    sampled_tokens: int  # unmasked response tokens
    rows_without_temperature: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the prompt and response tokens of each sequence."""
        return self.prompt_lengths + self.response_lengths

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    def ranges(self, tokens: int) -> list[RowRange]:
        """Cut consecutive ranges of rows of about `tokens` tokens each, at least one row each."""
        ends = np.cumsum(self.lengths)
        ranges: list[RowRange] = []
        start = 0
        while start < len(ends):
            before = ends[start - 1] if start else 0
            stop = int(np.searchsorted(ends, before + tokens, side="right"))
            ranges.append((start, max(stop, start + 1)))
            start = ranges[-1][1]
        return ranges


def survey(dump: Table, limits: Sequence[ModelLimits]) -> Survey:
    """Check every row against the models that are to score it, and measure the table."""
    dump.require("prompt_ids")
    names = columns_needed(dump.schema.names, (), prompts=True)
    if "sample_id" in dump.schema.names:
        names.append("sample_id")
    unique = UniqueSampleIds()
    prompts, responses, sampled, unknown = [], [], 0, 0
    for batch in dump.batches(names):
        unique.add(batch)
        rows = decode(batch, prompts=True)
        _check_rows(batch, rows)
        for limit in limits:
            check_limits(rows, limit, batch.where)
        assert rows.prompt_ids is not None
        prompts.append(rows.prompt_ids.lengths)
        responses.append(rows.response_ids.lengths)
        sampled += int(rows.mask.sum())
        unknown += len(rows) if rows.temperature is None else int(np.isnan(rows.temperature).sum())
    unique.check(dump)
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
    )


def _check_rows(batch: Batch, rows: Trajectories) -> None:
    assert rows.prompt_ids is not None
    _check_temperature(batch, rows)
    empty = (rows.prompt_ids.lengths == 0) & (rows.response_ids.lengths > 0)
    if empty.any():
        raise RcdiagError(
            f"{batch.where(int(np.argmax(empty)))}: column `prompt_ids` is empty; the first "
            "response token has nothing before it to be scored from",
            hint="store at least the beginning-of-sequence token as the prompt",
        )


def check_limits(rows: Trajectories, limit: ModelLimits, where: Callable[[int], str]) -> None:
    """Refuse rows that a model cannot have read; `where` names a row of `rows`."""
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


def _check_temperature(batch: Batch, rows: Trajectories) -> None:
    if rows.temperature is None:
        return
    bad = (rows.temperature <= 0) | np.isinf(rows.temperature)
    if bad.any():
        row = int(np.argmax(bad))
        raise RcdiagError(
            f"{batch.where(row)}: column `temperature` is {rows.temperature[row]}",
            hint="logits are divided by it; greedy samples have no sampling temperature: leave "
            "it null to score them at 1",
        )


def _check_ids(where: Callable[[int], str], name: str, ids: Ragged, limit: ModelLimits) -> None:
    bad = ids.values >= limit.vocab_size
    if bad.any():
        at = int(np.argmax(bad))
        row = int(np.searchsorted(ids.offsets, at, side="right")) - 1
        raise RcdiagError(
            f"{where(row)}: column `{name}` holds token id {ids.values[at]}, outside the "
            f"vocabulary of {limit.model} ({limit.vocab_size} tokens)",
            hint="is it the model that sampled these rows?",
        )
