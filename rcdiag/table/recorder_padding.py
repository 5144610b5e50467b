"""Find the tokens in the padded matrices that are given to `Recorder.add`.

They are marked by an attention mask, the lengths of the responses, or the response mask.
Contradictions are errors that name the argument and the row of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.padding import ATTENTION, OF_PROMPTS, Cut

# Arguments that mark padding and are not stored as columns.
LENGTHS = "lengths"
CUTTING = (ATTENTION, LENGTHS, OF_PROMPTS)
IDS, MASK, PROMPT = "response_ids", "response_mask", "prompt_ids"


def wrong(name: str, row: int | None, what: str, hint: str) -> RcdiagError:
    """Return the error for an argument of Recorder.add; `row` counts from 0 within the batch."""
    where = "" if row is None else f", row {row} of the batch"
    return RcdiagError(f"Recorder.add: `{name}`{where}: {what}", hint=hint)


def kind_of(value: Any) -> str:
    """Describe the kind of a value for messages."""
    if isinstance(value, np.ndarray):
        return f"an array [{', '.join(map(str, value.shape))}]"
    if isinstance(value, list):
        return f"a list of {type(value[0]).__name__}" if value else "an empty list"
    return f"one {type(value).__name__}"


def is_list(value: Any) -> bool:
    """Tell whether a value is a list or an array, as the values of the tokens of one row are."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return hasattr(value, "__len__") and not isinstance(value, (str, bytes, Mapping, Set))


def are_lists(rows: Any) -> bool:
    """Tell whether a value is a list of rows, each of them a list or None."""
    return isinstance(rows, list) and all(row is None or is_list(row) for row in rows)


def find_cuts(given: dict[str, Any], rows: int) -> tuple[Cut | None, Cut | None]:
    """Return the token blocks of response and prompt matrices; None if nothing marks them.

    With an attention mask or lengths, lists of equally long rows are matrices; they are converted
    in `given`.
    """
    if ATTENTION in given or LENGTHS in given:
        given[IDS] = as_matrix(given[IDS])
    width = _width(given[IDS])
    prompt = _cut_by_mask(OF_PROMPTS, _mask(OF_PROMPTS, given, rows), 0)
    response = None
    attention = _mask(ATTENTION, given, rows)
    if attention is not None and attention.shape[1] == width:
        response = _cut_by_mask(ATTENTION, attention, 0)
    elif attention is not None:
        if PROMPT in given:
            given[PROMPT] = as_matrix(given[PROMPT])
        columns = _columns_of_prompt(given, attention, width)
        prompt = _cut_by_mask(ATTENTION, attention[:, :columns], 0)
        response = _cut_by_mask(ATTENTION, attention[:, columns:], columns)
    if LENGTHS in given:
        response = _same(response, _cut_by_lengths(given[LENGTHS], width, rows))
    if response is None and width is not None and MASK in given:
        response = _cut_by_response_mask(given[MASK], width, rows)
    return response, prompt


def as_matrix(value: Any) -> Any:
    """Return rows of equal length as a matrix, because `tolist` of a tensor gives such lists."""
    if not isinstance(value, list) or not all(map(is_list, value)):
        return value
    try:
        return np.array(value) if len({len(row) for row in value}) == 1 else value
    except ValueError:  # lists of different lengths inside the rows
        return value


def _width(value: Any) -> int | None:
    """Return the width of a matrix; None for lists of rows."""
    return value.shape[1] if isinstance(value, np.ndarray) and value.ndim > 1 else None


def _mask(name: str, given: Mapping[str, Any], rows: int) -> NDArray[np.bool_] | None:
    """Return a mask as a matrix of booleans, [rows, width]."""
    if name not in given:
        return None
    mask = as_matrix(given[name])
    if not isinstance(mask, np.ndarray) or mask.ndim != 2 or len(mask) != rows:
        raise wrong(name, None, f"it is {kind_of(mask)}", f"it is a matrix of {rows} rows")
    bad = (mask != 0) & (mask != 1)
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        raise wrong(name, row, f"it holds {mask[row, column]}", "a mask holds 0 and 1")
    return mask.astype(np.bool_)


def _columns_of_prompt(
    given: Mapping[str, Any], attention: NDArray[np.bool_], width: int | None
) -> int:
    """Return the number of an attention mask's columns that cover the prompt."""
    prompt = _width(given.get(PROMPT))
    if width is None or prompt is None or attention.shape[1] != prompt + width:
        raise wrong(
            ATTENTION,
            None,
            f"it has {attention.shape[1]} columns, `{IDS}` {width or 'rows of several lengths'}, "
            f"`{PROMPT}` {prompt or 'none'}",
            f"it covers `{IDS}`, or `{PROMPT}` and `{IDS}` side by side, all as matrices",
        )
    return prompt


def _cut_by_mask(name: str, mask: NDArray[np.bool_] | None, column: int) -> Cut | None:
    """Return the blocks of ones of a mask; an error if a row has more than one block.

    `column` is the argument's column in which `mask` begins.
    """
    if mask is None:
        return None
    where = Cut.from_mask(mask)
    misfits = where.misfits(mask)
    if len(misfits):
        row = int(misfits[0])
        at = int(np.argmax(where.inside(mask.shape[1])[row] & ~mask[row])) + column
        raise wrong(
            name,
            row,
            f"it is 0 at column {at}, between ones",
            f"padding comes before or after the tokens; tokens of tools have 0 in `{MASK}`",
        )
    return where


def _cut_by_lengths(given: Any, width: int | None, rows: int) -> Cut | None:
    nested = isinstance(given, list) and any(map(is_list, given))
    lengths: NDArray[Any] = np.empty((rows, 0)) if nested else np.asarray(given)
    if lengths.ndim != 1 or len(lengths) != rows or lengths.dtype.kind not in "iu":
        raise wrong(LENGTHS, None, f"it is {kind_of(given)}", f"it holds {rows} whole numbers")
    if width is None:
        return None
    outside = (lengths < 0) | (lengths > width)
    if outside.any():
        row = int(np.argmax(outside))
        raise wrong(LENGTHS, row, f"{lengths[row]}", f"`{IDS}` has {width} columns")
    return Cut.from_lengths(lengths, width)


def _cut_by_response_mask(given: Any, width: int, rows: int) -> Cut:
    """Return responses that end with their last sampled token.

    A response mask given as lists shorter than the matrix defines the response lengths itself.
    """
    if are_lists(given) and any(row is None or len(row) != width for row in given):
        lengths = np.array([0 if row is None else len(row) for row in given], np.int64)
        if (lengths > width).any():
            row = int(np.argmax(lengths > width))
            raise wrong(MASK, row, f"{lengths[row]} values", f"`{IDS}` has {width} columns")
        return Cut.from_lengths(lengths, width)
    mask = _mask(MASK, {MASK: given}, rows)
    if mask is None or mask.shape[1] != width:
        raise wrong(MASK, None, f"it is {kind_of(given)}", f"`{IDS}` has {width} columns")
    lengths = (mask * np.arange(1, width + 1)).max(1, initial=0)  # up to the last 1
    return Cut.from_lengths(lengths, width)


def _same(by_mask: Cut | None, by_lengths: Cut | None) -> Cut | None:
    """Return the cut from mask or lengths; an error if both are given and differ."""
    if by_mask is None or by_lengths is None:
        return by_mask or by_lengths
    differ = by_mask.lengths != by_lengths.lengths
    if differ.any():
        row = int(np.argmax(differ))
        raise wrong(
            LENGTHS,
            row,
            f"{by_lengths.lengths[row]}, but `{ATTENTION}` has {by_mask.lengths[row]} tokens",
            "give one of them",
        )
    return by_mask
