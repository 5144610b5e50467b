"""Rows and scores as the bytes of an .npz file, exchanged with an engine's process.

The file holds plain arrays, no pickled objects, and numpy 1.26 and 2 can both read it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.table.trajectories import Ragged, Scores, Trajectories

# Fields of `Trajectories` that engines read: one value for each row or token, and lists.
COLUMNS = ("mask", "temperature", "rows")
LISTS = ("prompt_ids", "response_ids")
TOKEN_LIST = "token_lists."  # prefix of a column with a list for each token
SAMPLING = "sampling."  # prefix of a sampling parameter with a value for each row


def rows_to_bytes(rows: Trajectories) -> bytes:
    """Pack the columns of rows that engines read."""
    lists = {name: getattr(rows, name) for name in LISTS}
    lists |= {TOKEN_LIST + name: column for name, column in rows.token_lists.items()}
    arrays = {name: getattr(rows, name) for name in COLUMNS}
    arrays |= {SAMPLING + name: column for name, column in rows.sampling.items()}
    for name, column in lists.items():
        if column is not None:
            arrays |= {f"{name}.values": column.values, f"{name}.offsets": column.offsets}
    return _pack({**arrays, "first_row": np.asarray(rows.first_row)})


def rows_from_bytes(content: bytes) -> Trajectories:
    """Unpack the rows that `rows_to_bytes` packed."""
    arrays = _unpack(content)
    names = [name.removesuffix(".values") for name in arrays if name.endswith(".values")]
    lists = {name: Ragged(arrays[f"{name}.values"], arrays[f"{name}.offsets"]) for name in names}
    return Trajectories(
        first_row=int(arrays["first_row"]),
        response_ids=lists["response_ids"],
        prompt_ids=lists.get("prompt_ids"),
        mask=arrays["mask"],
        temperature=arrays.get("temperature"),
        rows=arrays.get("rows"),
        sampling={
            name.removeprefix(SAMPLING): column
            for name, column in arrays.items()
            if name.startswith(SAMPLING)
        },
        token_lists={
            name.removeprefix(TOKEN_LIST): column
            for name, column in lists.items()
            if name.startswith(TOKEN_LIST)
        },
    )


def scores_to_bytes(scores: Scores) -> bytes:
    """Pack the scores that an engine has computed."""
    return _pack({field.name: getattr(scores, field.name) for field in fields(Scores)})


def scores_from_bytes(content: bytes) -> Scores:
    """Unpack scores; ValueError if the bytes hold anything but arrays."""
    return Scores(**_unpack(content))


def _pack(arrays: Mapping[str, NDArray[Any] | None]) -> bytes:
    """Return the arrays that are not None as the bytes of an .npz file."""
    file = io.BytesIO()
    present: dict[str, Any] = {name: one for name, one in arrays.items() if one is not None}
    np.savez(file, **present)
    return file.getvalue()


def _unpack(content: bytes) -> dict[str, NDArray[Any]]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
