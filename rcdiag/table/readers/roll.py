"""ROLL's dump of a step's sampled batch (`rollout_mock.mode: dump`).

Layout: https://github.com/alibaba/ROLL/blob/main/roll/distributed/scheduler/protocol.py
(`DataProto.__getstate__`) and roll/utils/functionals.py (`postprocess_generate`). Sequences hold
prompt and response without a gap and are padded on the right; log-prob j belongs to token j + 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
from rcdiag.table.readers.reader import Dump, Notes, Reader, Rows
from rcdiag.table.readers.safe import (
    Content,
    Foreign,
    StoredTensor,
    foreign,
    laid_out,
    load_pickle,
    load_torch,
    open_content,
)

MODULE, CLASS = "roll.distributed.scheduler.protocol", "DataProto"
REMOTE = ("roll.distributed.scheduler.remote_protocol", "RemoteBatch")
NAMES = foreign([(MODULE, CLASS), REMOTE])
STEP = re.compile(r"step_(\d+)")

# ROLL's log-prob columns, of all tokens but the first -> columns of the table.
LOG_PROBS = {
    "infer_logprobs": "rollout_log_probs",
    "old_log_probs": "old_log_probs",
    "ref_log_probs": "ref_log_probs",
}
GROUPS = ("prompt_id", "group_ids")  # of single-turn runs, of agentic runs
SETTINGS = {"temperature": float, "top_p": float, "top_k": int}
# Folders of a dump, by what its batches were sampled for.
TRAINING, VALIDATION = "train", "val"
EVALUATIONS = "batches of evaluations (val) are not read together with those of training"


def _read(dump: Dump) -> Iterator[Rows]:
    # Files of evaluations are read only if there are none of training.
    files = dump.files
    if any(file.parent.name == TRAINING for file in files):
        files = tuple(file for file in files if file.parent.name != VALIDATION)
        if len(files) < len(dump.files):
            dump.notes.change(EVALUATIONS)
    for number, path in enumerate(files):
        with laid_out(str(path), "ROLL"):
            tensors, values, meta = _open(open_content(path))
            yield from _rows_of(tensors, values, meta, path, number, dump.notes)


def _open(content: Content) -> tuple[dict[str, StoredTensor], dict[str, Any], dict[str, Any]]:
    """Return tensors, other values by row, and metadata of the batch."""
    loaded = load_pickle(content, NAMES)
    if not isinstance(loaded, Foreign) or not isinstance(loaded.state, tuple):
        raise TypeError(f"no {CLASS}")
    buffer, values, *remote, meta = loaded.state
    if any(part is not None for part in remote):
        raise RcdiagError(
            f"{content.name}: its tensors are in the object store of the run (remote_batch), not "
            "in the file",
            hint="dump a run whose batches are not passed by reference",
        )
    tensors = load_torch(content.inner(buffer, "its tensors"))
    if not isinstance(tensors, dict):
        raise TypeError("no TensorDict")
    kept = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, StoredTensor)}
    return kept, values, meta or {}


def _rows_of(
    tensors: dict[str, StoredTensor],
    values: dict[str, Any],
    meta: dict[str, Any],
    path: Path,
    number: int,
    notes: Notes,
) -> Iterator[Rows]:
    ids = tensors["input_ids"]
    padded.check_rows(tensors, "input_ids", path)
    facts = _columns_of_rows(tensors, values, meta, path, number, notes)
    if any(name in tensors for name in LOG_PROBS):
        notes.change("log-probs are shifted by one: ROLL's value j belongs to token j + 1")
    if "response_mask" not in tensors:
        notes.change(NO_MASK, len(ids))
    cut = partial(_token_columns, tensors)
    width = ids.shape[1] * (1 + padded.width_of_experts(tensors.get("routed_experts")))
    yield from padded.rows_in_parts(path, np.arange(len(ids)), width, facts, cut)


def _token_columns(
    tensors: dict[str, StoredTensor], rows: RowIndex, where: Where
) -> dict[str, Any]:
    def column(name: str, span: Cut) -> pa.ListArray:
        return padded.token_column(tensors[name], rows, span, name, where)

    whole, prompt = (
        padded.block(padded.rows_of(tensors[name], rows), "left", name, where)
        for name in ("attention_mask", "prompt_mask")
    )
    if (whole.lengths < prompt.lengths).any():
        row = int(np.argmax(whole.lengths < prompt.lengths))
        raise RcdiagError(
            f"{where(row)}: prompt_mask reaches beyond attention_mask",
            hint=padded.BELONG_TOGETHER,
        )
    response = Cut(prompt.lengths, whole.lengths - prompt.lengths)
    columns = {
        "prompt_ids": column("input_ids", prompt),
        "response_ids": column("input_ids", response),
    }
    if "response_mask" in tensors:
        columns["response_mask"] = padded.mask_column(
            tensors["response_mask"], rows, response, "response_mask", where
        )
    for source, name in LOG_PROBS.items():
        if source in tensors:
            width = tensors["input_ids"].shape[1]
            if tensors[source].shape[1:] != (width - 1,):
                raise ValueError(f"{source} has not one column less than input_ids ({width})")
            columns[name] = column(source, _of_next_token(response, prompt))
    if "routed_experts" in tensors:  # at each token's own index, unlike log-probs; last token: 0
        experts = padded.cut_rows(tensors["routed_experts"], rows, response, "experts", where)
        columns["rollout_routed_experts"] = experts_of_tokens(experts, response.lengths)
    if "advantages" in tensors and len(tensors["advantages"].shape) == 2:
        columns["advantages"] = column("advantages", _of_next_token(response, prompt))
    return columns


def _of_next_token(response: Cut, prompt: Cut) -> Cut:
    """Return the blocks of response tokens in a matrix that lacks the first token."""
    if ((prompt.lengths == 0) & (response.lengths > 0)).any():
        raise ValueError("a response without a prompt, whose first token has no log-prob")
    return Cut(np.maximum(response.starts - 1, 0), response.lengths)


def _columns_of_rows(
    tensors: dict[str, StoredTensor],
    values: dict[str, Any],
    meta: dict[str, Any],
    path: Path,
    number: int,
    notes: Notes,
) -> dict[str, pa.Array]:
    """Return the columns with one value per row, for all rows."""
    made: dict[str, pa.Array] = {}
    count = len(tensors["input_ids"])
    for name in GROUPS:
        ids = tensors[name].numpy() if name in tensors else values.get(name)
        if ids is not None and "group_id" not in made:
            if len(ids) != count:
                raise ValueError(f"{name} has {len(ids)} rows, input_ids has {count}")
            notes.change(f"groups are those of ROLL's {name}")
            made["group_id"] = from_python([f"{number}-{group}" for group in ids])
    made |= padded.named_step(path.stem, STEP, count, notes)
    if "scores" in tensors:
        made["reward"] = from_numpy(padded.sums(tensors["scores"], np.arange(count)))
    settings = meta.get("generation_config")
    for name, kind in SETTINGS.items():
        value = settings.get(name) if isinstance(settings, dict) else None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            made[name] = from_python([kind(value)] * count)
    return made


ROLL = Reader(
    name="roll",
    says="Sampled batches of ROLL, single-turn or agentic, which rollout_mock dumps.",
    patterns=("step_*.pkl", "*.pkl"),
    detect=lambda peek: f"{MODULE}.{CLASS}" in peek.pickle_calls,
    read=_read,
    source="https://github.com/alibaba/ROLL/blob/main/roll/distributed/scheduler/protocol.py",
)
