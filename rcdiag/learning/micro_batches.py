"""Micro-batches of rows with similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor

from rcdiag.engines.padded_batches import length_buckets, padded, whole_sequences
from rcdiag.errors import RcdiagError
from rcdiag.table.trajectories import Ragged, Trajectories


class ModelRow(Struct, frozen=True):
    """One sequence with at least one unmasked token."""

    ids: NDArray[np.int64]  # the model's input: all tokens before the last unmasked one
    places: NDArray[np.int64]  # [tokens] the state at place p predicts `targets`
    targets: NDArray[np.int64]  # [tokens] unmasked response tokens
    temperature: float
    first: int  # index of its first unmasked token among those of all rows


class MicroBatch(Struct, frozen=True):
    """Several rows, padded on the right: under a causal mask no token attends to the padding."""

    rows: NDArray[np.int64]  # [rows] indices among the rows with an unmasked token
    ids: Tensor  # [rows, width]
    row: Tensor  # [tokens] index of the token's row in this micro-batch
    place: Tensor  # [tokens]
    targets: Tensor  # [tokens]
    temperature: Tensor  # [tokens] float64, on the CPU
    tokens: NDArray[np.int64]  # [tokens] indices among the unmasked tokens of all rows


def rows_of(parts: Sequence[Trajectories], vocab_size: int) -> list[ModelRow]:
    """Return the rows with an unmasked token, in the order of the table."""
    rows: list[ModelRow] = []
    first = 0
    for part in parts:
        if part.prompt_ids is None:
            raise RcdiagError("the table has no prompts", hint="record the column `prompt_ids`")
        sequences, starts = whole_sequences(part)
        masks = Ragged(part.mask, part.response_ids.offsets)
        temperatures = part.scoring_temperature
        for index, ids in enumerate(sequences):
            sampled = np.flatnonzero(masks.row(index))
            if len(sampled):
                _check_row(ids, starts[index] + sampled, int(part.row[index]), vocab_size)
                places = starts[index] + sampled - 1
                wide = ids.astype(np.int64)
                read, targets = wide[: places[-1] + 1], wide[places + 1]
                rows.append(ModelRow(read, places, targets, float(temperatures[index]), first))
                first += len(sampled)
    return rows


def _check_row(
    ids: NDArray[np.integer], positions: NDArray[np.int64], number: int, vocab_size: int
) -> None:
    strange = ids[(ids < 0) | (ids >= vocab_size)]
    if len(strange):
        raise RcdiagError(
            f"row {number:,}: token id {strange[0]} is not in the model's vocabulary of "
            f"{vocab_size:,}",
            hint="give the model that sampled this table",
        )
    if positions[0] == 0:
        raise RcdiagError(
            f"row {number:,}: its prompt is empty, so nothing predicts its first token",
            hint="record the whole prompt in `prompt_ids`",
        )


def micro_batches(
    rows: Sequence[ModelRow],
    selected: NDArray[np.bool_],
    batch_tokens: int,
    device: torch.device,
    context: int | None,
) -> Iterator[MicroBatch]:
    """Yield the `selected` rows, longest first, in micro-batches of at most `batch_tokens`.

    Padding counts towards the limit; a longer row is a micro-batch by itself. Widths stay within
    `context`, the model's maximum length.
    """
    lengths = np.array([len(row.ids) for row in rows])
    for chosen in length_buckets(np.where(selected, lengths, 0), batch_tokens):
        yield _padded(rows, chosen, device, context)


def _padded(
    rows: Sequence[ModelRow], chosen: NDArray[np.int64], device: torch.device, context: int | None
) -> MicroBatch:
    picked = [rows[index] for index in chosen]
    ids = padded([row.ids for row in picked], context)
    counts = [len(row.places) for row in picked]

    def on_device(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(device)

    return MicroBatch(
        rows=chosen,
        ids=on_device(ids),
        row=on_device(np.repeat(np.arange(len(picked)), counts)),
        place=on_device(np.concatenate([row.places for row in picked])),
        targets=on_device(np.concatenate([row.targets for row in picked])),
        temperature=torch.from_numpy(np.repeat([row.temperature for row in picked], counts)),
        tokens=np.concatenate([row.first + np.arange(len(row.places)) for row in picked]),
    )


def rows_with(rows: Sequence[ModelRow], coefficients: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell which rows have a nonzero coefficient in any of the vectors [K, tokens]."""
    moved = (coefficients != 0).any(axis=0)
    return np.array([moved[row.first : row.first + len(row.places)].any() for row in rows], bool)
