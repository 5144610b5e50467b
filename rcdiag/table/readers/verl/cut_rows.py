"""Convert a verl batch to rows: cut columns by the attention mask, and rename them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rcdiag.errors import RcdiagError
from rcdiag.table.arrow import experts as experts_of_tokens
from rcdiag.table.arrow import from_numpy, from_python
from rcdiag.table.padding import Cut
from rcdiag.table.readers import padded
from rcdiag.table.readers.padded import NO_MASK, RowIndex, Where
from rcdiag.table.readers.reader import Notes, Rows
from rcdiag.table.readers.safe import Jagged, StoredTensor
from rcdiag.table.readers.verl.contents import (
    OUTPUT_BATCH,
    VerlBatch,
    missing_responses,
    named_sizes,
    named_step,
    recorded_step,
)
from rcdiag.table.schema import TOKEN_FLOATS, column_spec

# Column of the table -> verl's names for it; the first name that the file has is used.
FLOATS = {
    "rollout_log_probs": ("rollout_log_probs",),
    "old_log_probs": ("old_log_probs",),
    "ref_log_probs": ("ref_log_prob", "ref_log_probs"),
    "old_entropy": ("entropys", "entropy", "old_entropy", "old_entropys"),
    "advantages": ("advantages",),
    "returns": ("returns",),
    "values": ("values",),
    "rollout_is_weights": ("rollout_is_weights",),
}
MASKS = ("response_mask", "loss_mask")
# Score per token; its sum over a row is the reward, before penalties that training adds.
SCORES = ("token_level_scores", "rm_scores")
# The training steps whose weights sampled the first and the last token of a row.
VERSIONS = ("min_global_steps", "max_global_steps")
# Values beside the tensors of which every row has one.
OF_EVERY_ROW = ("uid", "min_global_steps", "data_source")
# Columns that locate the tokens, or that repeat other columns.
PLACES = ("prompts", "responses", "input_ids", "position_ids", "attention_mask", *MASKS)
LEFT_OUT = "columns for which the table has no place are left out"
UNEVEN = "are left out: rows without a value, or with a single value for a whole row"
ASYNC_PROMPT = re.compile(r"(?:uid_)?sample_\d+_\d+")


def rows_of(batch: VerlBatch, path: Path, number: int, notes: Notes) -> Iterator[Rows]:
    """Yield the rows of one file's batch; `number` is the file's number, from 0."""
    responses = batch.tensors.get("responses")
    if responses is None:
        raise missing_responses(path)
    listed = {"keys": batch.keys, "tags": batch.tags}
    others: dict[str, Any] = {name: column for name, column in listed.items() if column}
    others |= {name: batch.values[name] for name in OF_EVERY_ROW if name in batch.values}
    padded.check_rows({**batch.tensors, **others}, "responses", path)
    _check_tags(batch, path)
    kept = np.arange(len(responses))
    fills = np.array([bool(tag.get("is_padding")) for tag in batch.tags], bool)
    if fills.any():
        notes.change(
            "rows that TransferQueue adds to fill a batch (is_padding) are left out",
            int(fills.sum()),
        )
        kept = kept[~fills]
    facts = _columns_of_rows(batch, path, number, notes)
    _say_what_is_left(batch, facts, notes)
    width: Any = 1
    widest = batch.tensors.get("attention_mask", responses)
    if isinstance(responses, Jagged):
        width = responses.lengths[kept]
    elif isinstance(widest, StoredTensor):
        width = widest.shape[1]
    if not any(name in batch.tensors for name in MASKS):
        notes.change(NO_MASK, len(kept))
    width = width * (1 + padded.width_of_experts(batch.tensors.get("routed_experts")))
    yield from padded.rows_in_parts(path, kept, width, facts, partial(_token_columns, batch))


# Tokens


def _token_columns(batch: VerlBatch, rows: RowIndex, where: Where) -> dict[str, Any]:
    """Return the columns with one value per token, for some rows."""
    prompt, response, columns = _spans(batch, rows, where)
    tensors = batch.tensors
    responses = tensors["responses"]
    made: dict[str, Any] = {}

    def add(name: str, source: str, span: Cut) -> None:
        if span is response:
            _check_width(tensors[source], responses, source, where)
        made[name] = padded.token_column(tensors[source], rows, span, source, where)

    if prompt is not None:
        source = "prompts" if "prompts" in tensors else "input_ids"
        add("prompt_ids", source, prompt)
    add("response_ids", "responses", response)
    for source in MASKS:
        if source in tensors and "response_mask" not in made:
            whole = _spans_prompt(tensors[source], responses, columns)
            if not whole:
                _check_width(tensors[source], responses, source, where)
            made["response_mask"] = padded.mask_column(
                tensors[source],
                rows,
                response + columns if whole else response,
                source,
                where,
                before=columns if whole else 0,
            )
    for name, sources in FLOATS.items():
        for source in sources:
            if source in tensors and name not in made and not _is_scalar(tensors[source]):
                add(name, source, response)
    known = {source for sources in FLOATS.values() for source in sources}
    for source in tensors:  # of further policies that a hook scored
        if source not in known and _is_by_token(source) and not _is_scalar(tensors[source]):
            add(source, source, response)
    experts = tensors.get("routed_experts")
    if isinstance(experts, StoredTensor) or (experts is not None and prompt is not None):
        span = response + columns
        values = padded.after_prompts(experts, rows, prompt, span, "routed_experts", where)
        made["rollout_routed_experts"] = experts_of_tokens(values, response.lengths)
    return made


def _spans(batch: VerlBatch, rows: RowIndex, where: Where) -> tuple[Cut | None, Cut, int]:
    """Return the blocks of prompts (if any) and responses, and the column where responses begin."""
    tensors = batch.tensors
    responses, prompts = tensors["responses"], tensors.get("prompts")
    if isinstance(responses, Jagged):
        response = Cut(responses.starts[rows], responses.lengths[rows])
        if not isinstance(prompts, Jagged):
            return None, response, 0
        return Cut(prompts.starts[rows], prompts.lengths[rows]), response, 0
    attention = tensors.get("attention_mask")
    if not isinstance(attention, StoredTensor) or len(attention.shape) != 2:
        raise RcdiagError(
            f"{where(0)}: responses are padded, and there is no attention_mask to cut them by",
            hint="save attention_mask too: neither response_mask, which is 0 at tool tokens, nor "
            "the id of padding, which may end a response, separates padding from tokens",
        )
    mask = padded.rows_of(attention, rows)
    before = mask.shape[1] - responses.shape[1]
    if before < 0 or (isinstance(prompts, StoredTensor) and prompts.shape[1] != before):
        raise RcdiagError(
            f"{where(0)}: attention_mask has {mask.shape[1]} columns, which is not the width of "
            "prompts and responses together",
            hint=padded.BELONG_TOGETHER,
        )
    response = padded.block(mask[:, before:], "left", "attention_mask of the response", where)
    if prompts is None and "input_ids" not in tensors:
        return None, response, before
    prompt = padded.block(mask[:, :before], "right", "attention_mask of the prompt", where)
    return prompt, response, before


def _spans_prompt(
    mask: StoredTensor | Jagged, responses: StoredTensor | Jagged, columns: int
) -> bool:
    """Tell whether a mask covers prompt and response, as loss_mask did before verl 0.5.

    `columns` is the width of the prompts.
    """
    if isinstance(mask, Jagged) or isinstance(responses, Jagged) or not columns:
        return False
    return mask.shape[1] == columns + responses.shape[1]


def _check_width(
    tensor: StoredTensor | Jagged, responses: StoredTensor | Jagged, name: str, where: Where
) -> None:
    """Refuse a padded column that does not have the width of the responses."""
    if isinstance(tensor, Jagged) or isinstance(responses, Jagged):
        return
    if tensor.shape[1:2] != responses.shape[1:2]:
        raise RcdiagError(
            f"{where(0)}: {name} has the shape {list(tensor.shape)}, responses has "
            f"{list(responses.shape)}",
            hint=padded.BELONG_TOGETHER,
        )


def _is_scalar(tensor: StoredTensor | Jagged) -> bool:
    return isinstance(tensor, StoredTensor) and len(tensor.shape) == 1


# Rows


def _check_tags(batch: VerlBatch, path: Path) -> None:
    """Refuse rows of TransferQueue whose lengths differ from those in their tags."""
    for name, tag in (("prompts", "prompt_len"), ("responses", "response_len")):
        column = batch.tensors.get(name)
        if not isinstance(column, Jagged) or not all(tag in tags for tags in batch.tags):
            continue
        said = np.array([tags[tag] for tags in batch.tags], np.int64)
        if batch.tags and (said != column.lengths).any():
            row = int(np.argmax(said != column.lengths))
            raise RcdiagError(
                f"{path}, row {row}: {name} has {column.lengths[row]} tokens, its tag says "
                f"{said[row]}",
                hint="tags and columns of one batch belong together; write the dump again",
            )


def _columns_of_rows(
    batch: VerlBatch, path: Path, number: int, notes: Notes
) -> dict[str, pa.Array]:
    """Return the columns with one value per row, for all rows."""
    count = len(batch.tensors["responses"])
    made: dict[str, pa.Array] = {}
    if batch.keys:
        made["sample_id"] = from_python(list(map(str, batch.keys)), pa.string())
    groups = _groups(batch, path, number, count, notes)
    if groups is not None:
        made["group_id"] = from_python(groups, pa.string())
    step = _step(batch, path, count, notes)
    if step is not None:
        made["step"] = from_numpy(np.full(count, step, np.int64))
    versions = _versions(batch, notes)
    if versions is not None:
        made["policy_version"] = from_python(versions, pa.int64())
    for name in SCORES:
        if name in batch.tensors:
            scores = batch.tensors[name]
            made["reward"] = from_numpy(padded.sums(scores, np.arange(len(scores))))
            break
    advantages = batch.tensors.get("advantages")
    if advantages is not None and _is_scalar(advantages):
        made["advantage"] = from_numpy(advantages.numpy().astype(np.float64))  # type: ignore
    temperature = batch.meta.get("temperature")
    if isinstance(temperature, (int, float)) and not isinstance(temperature, bool):
        made["temperature"] = from_numpy(np.full(count, temperature, np.float64))
    sources = batch.values.get("data_source")
    if sources is not None and all(isinstance(source, str) for source in sources):
        made["data_source"] = from_python(list(sources), pa.string())
    scalars = {
        name: tensor.numpy()
        for name, tensor in batch.tensors.items()
        if isinstance(tensor, StoredTensor)
        and _is_scalar(tensor)
        and name not in (*FLOATS, *SCORES)
    }
    extras = {
        name: numbers
        for name, values in {**scalars, **batch.values}.items()
        if name not in (*made, *VERSIONS) and column_spec(name) is None
        if (numbers := _numbers(values, count)) is not None
    }
    if extras:
        notes.change(f"numbers by row, such as rewards, are kept as columns: {', '.join(extras)}")
    return made | {name: from_python(values, pa.float64()) for name, values in extras.items()}


def _say_what_is_left(batch: VerlBatch, facts: Collection[str], notes: Notes) -> None:
    """Note the columns of a batch that are not converted; `facts` are the columns by row."""
    sources = {source for names in FLOATS.values() for source in names}
    by_token = {name for name in batch.tensors if name in sources or _is_by_token(name)}
    taken = {*PLACES, *VERSIONS, "uid", "routed_experts", *facts}
    taken |= {name for name in by_token if not _is_scalar(batch.tensors[name])}
    taken |= {name for name in SCORES if name in batch.tensors}
    left = [n for n in (*batch.tensors, *batch.values, *batch.others) if n not in taken]
    uneven = sorted(name for name in left if name in (*sources, *SCORES) or _is_by_token(name))
    if uneven:
        notes.change(f"{', '.join(uneven)} {UNEVEN}")
    if others := sorted(set(left) - set(uneven)):
        notes.change(f"{LEFT_OUT}: {', '.join(others)}")


def _is_by_token(name: str) -> bool:
    return column_spec(name) is TOKEN_FLOATS


def _numbers(values: Any, count: int) -> list[float | None] | None:
    """Return one number or None per row; None if the values are anything else."""
    if len(values) != count or (isinstance(values, np.ndarray) and values.ndim != 1):
        return None
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    if not all(value is None or isinstance(value, (bool, int, float)) for value in plain):
        return None
    if all(value is None for value in plain):
        return None
    return [None if value is None else float(value) for value in plain]


def _groups(
    batch: VerlBatch, path: Path, number: int, count: int, notes: Notes
) -> list[str] | None:
    """Return the prompt group of each row, from the file or its folder's name; None if unknown."""
    uids = batch.values.get("uid")
    if uids is not None:
        notes.change("groups are those of verl's uid")
        return [str(uid) for uid in uids]
    if batch.keys:
        notes.change("groups are those of TransferQueue's keys: uid_session_index")
        return [str(key).rsplit("_", 2)[0] for key in batch.keys]
    sizes = named_sizes(path)
    prompts = batch.tensors.get("prompts")
    if sizes is None or sizes[1] < 1 or count % sizes[1] or not isinstance(prompts, StoredTensor):
        return None
    first = np.arange(count) // sizes[1] * sizes[1]
    for rows in padded.batches_of(np.arange(count), prompts.shape[1]):
        if not np.array_equal(prompts[rows].numpy(), prompts[first[rows]].numpy()):
            return None
    notes.change(f"groups are {sizes[1]} consecutive rows: N in the folder's name")
    return [f"{number}-{row // sizes[1]}" for row in range(count)]


def _step(batch: VerlBatch, path: Path, count: int, notes: Notes) -> int | None:
    """Return the training step of a file, from its content or its name."""
    recorded, named = recorded_step(path, batch.meta), named_step(path)
    if path.name == OUTPUT_BATCH and path.parent.name.isdecimal():
        # A fully asynchronous run writes one such folder for each prompt.
        uids, sizes = batch.values.get("uid"), named_sizes(path)
        if uids is not None and len(uids):
            by_prompt = ASYNC_PROMPT.fullmatch(str(uids[0])) is not None
        else:
            by_prompt = sizes is not None and count == sizes[1] and sizes[0] > 1
        if by_prompt:
            notes.change("folders are numbered by prompt, not by training step: step is left out")
            return None
    if recorded is None and named is not None:
        notes.change("steps are those in the names of files or folders", count)
        return named
    return recorded


def _versions(batch: VerlBatch, notes: Notes) -> list[int | None] | None:
    """Return the version of the weights that sampled the first token of each row."""
    first, last = (_by_row(batch, name) for name in VERSIONS)
    if first is None or all(version is None for version in first):
        return None
    changed = sum(a != b for a, b in zip(first, last or first, strict=True))
    if changed:
        notes.change(
            "weights changed while a row was sampled; policy_version is the first version", changed
        )
    return first


def _by_row(batch: VerlBatch, name: str) -> list[int | None] | None:
    """Return integers by row, from values next to the tensors or from tags; None if absent."""
    values: Any = batch.values.get(name)
    if values is None and name in batch.tensors:
        values = batch.tensors[name].numpy().tolist()  # type: ignore
    if values is None and batch.tags:
        values = [tag.get(name) for tag in batch.tags]
    if values is None:
        return None
    return [None if value is None else int(value) for value in values]
