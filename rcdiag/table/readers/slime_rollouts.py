"""Rollout dumps of slime and miles: samples after sampling, and the parquet of the dashboard.

https://github.com/THUDM/slime/blob/main/slime/utils/types.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from msgspec import Struct

from rcdiag.errors import RcdiagError, did_you_mean, mapping_setting
from rcdiag.table.arrow import as_numpy
from rcdiag.table.given import REWARD_KEY
from rcdiag.table.readers.parquet import read_whole
from rcdiag.table.readers.reader import Notes
from rcdiag.table.readers.safe import Content, Foreign, foreign, load_torch
from rcdiag.table.readers.samples import (
    Fields,
    prompt_and_response,
    samples_of,
    version_number,
)
from rcdiag.table.trajectories import Ragged

OPTION = "--save-debug-rollout-data"
ABORTED = "a sample without any response token (aborted before its first) is left out"
REMOVED = "a sample with remove_sample keeps its row; its response_mask is 0, as in training"
VERSIONS = (
    "a sample was continued under other weights, and the file does not say from which token on: "
    "its policy_version is unknown"
)
REWARDS = (
    "the reward is a dictionary ({names}) and is left out; "
    "--given reward_key=NAME takes one of its numbers"
)
CHOSEN = "the reward is `{key}` of its dictionary, as given"
NO_REMOVED = (
    "the dashboard's parquet does not say which samples were removed (remove_sample), nor their "
    "group, reward and version"
)
# Classes of miles in a sample: kept ids, and two that are not needed here (LoRA adapter, reward
# specification). https://github.com/radixark/miles/tree/main/miles/utils
OF_MILES = foreign(
    (
        ("miles.utils.sampling_mask", "RolloutSamplingMask"),
        ("miles.utils.sampling_mask", "PartialSamplingMask"),
        ("miles.utils.types", "AdapterRef"),
        ("miles.utils.types", "RewardSpec"),
    )
)
# Metadata keys of a parquet file of whole samples, which the dashboard's file does not have: its
# layout, and the names of columns whose cells are torch files.
# https://github.com/LLM360/miles/blob/main/miles/utils/rollout_dump.py
LAYOUT, ENCODED = b"miles.rollout_dump.version", b"miles.encoded"
# A sample's status -> the engine's finish reason, from which the status was made.
FINISH_REASONS = {"completed": "stop", "truncated": "length", "aborted": "abort"}

# slime's fields for the ids that top-p kept, and miles' fields for those of any filter.
KEPT_IDS = (
    ("rollout_top_p_token_ids", "rollout_top_p_token_offsets"),
    ("rollout_sampling_mask_ids", "rollout_sampling_mask_offsets"),
)

Row = dict[str, Any]


class SlimeSample(Struct, frozen=True):
    """A sample as a row of the table, with its position and index in other files of the run."""

    row: Row
    position: int  # in its file
    index: int | None


def rollout_samples(path: Path, notes: Notes, reward_key: str | None = None) -> list[SlimeSample]:
    """Return the samples of a rollout file that have a response, in file order.

    If a sample has a dictionary of rewards, `reward_key` names the entry that is the reward.
    """
    payload = load_torch(path, OF_MILES)
    if not isinstance(payload, dict) or not isinstance(payload.get("samples"), list):
        raise RcdiagError(f"{path}: no list `samples`", hint=f"is this a file of {OPTION}?")
    step = Fields(payload, str(path)).integer("rollout_id")
    samples = []
    for position, fields in enumerate(samples_of(payload["samples"], path, OPTION)):
        row = _row(fields, notes, reward_key)
        if row is not None:
            samples.append(SlimeSample({**row, "step": step}, position, fields.integer("index")))
    return samples


def _row(fields: Fields, notes: Notes, reward_key: str | None) -> Row | None:
    if not fields.count("response_length"):
        notes.change(ABORTED, 1)
        return None
    prompt, response = prompt_and_response(fields, "response_length")
    mask = fields.bits("loss_mask", len(response))
    if fields.flag("remove_sample"):
        notes.change(REMOVED, 1)
        mask = np.zeros(len(response), np.uint8)
    status = fields.values.get("status")
    return {
        "prompt_ids": prompt,
        "response_ids": response,
        "response_mask": np.ones(len(response), np.uint8) if mask is None else mask,
        "rollout_log_probs": fields.floats("rollout_log_probs", len(response)),
        "teacher_log_probs": fields.floats("teacher_log_probs", len(response)),
        "rollout_routed_experts": fields.experts(
            "rollout_routed_experts", len(prompt), len(response)
        ),
        "rollout_kept_ids": kept_ids(fields, len(response)),
        "reward": _reward(fields, notes, reward_key),
        "group_id": fields.integer("group_index"),
        "sample_index": fields.integer("index"),
        "policy_version": _version(fields.values.get("weight_versions"), notes),
        "finish_reason": FINISH_REASONS.get(status) if isinstance(status, str) else None,
    }


def kept_ids(fields: Fields, length: int) -> Ragged | None:
    """Return the kept ids of a sample, from slime's or miles' fields."""
    mask = fields.values.get("rollout_sampling_mask")
    if mask is not None:
        if not isinstance(mask, Foreign) or not isinstance(mask.state, dict):
            raise fields.wrong("rollout_sampling_mask", "is not a sampling mask of miles")
        # Its fields are `_ids` and `_offsets`; in early versions they have no underscore.
        held = {name.lstrip("_"): values for name, values in mask.state.items()}
        ids, offsets = (f"rollout_sampling_mask.{name}" for name in ("ids", "offsets"))
        values = {ids: held.get("ids"), offsets: held.get("offsets")}
        return Fields(values, fields.where).kept_ids(ids, offsets, length)
    for ids, offsets in KEPT_IDS:
        if (kept := fields.kept_ids(ids, offsets, length)) is not None:
            return kept
    return None


def _reward(fields: Fields, notes: Notes, key: str | None) -> float | None:
    """Return a sample's reward; of a dictionary of rewards, the entry `key` (None without `key`).

    Raises an error if the dictionary has no such entry, or if `key` is given but the reward is a
    number.
    """
    reward = fields.values.get("reward")
    if not isinstance(reward, Mapping):
        if key is not None and reward is not None:
            raise RcdiagError(
                f"{fields.where}: the reward is one number, but {_given(key)} is given",
                hint="leave the option out",
            )
        return fields.number("reward")
    names = ", ".join(map(str, reward))
    if key is None:
        notes.change(REWARDS.format(names=names), 1)
        return None
    if key not in reward:
        raise RcdiagError(
            f"{fields.where}: its rewards are {names}, and none is `{key}`",
            hint=f"{did_you_mean(key, list(map(str, reward)))}{_given('NAME')} names one",
        )
    notes.change(CHOSEN.format(key=key), 1)
    return Fields({f"reward[{key}]": reward[key]}, fields.where).number(f"reward[{key}]")


def _given(key: str) -> str:
    return mapping_setting("given", {REWARD_KEY: key}, "--given")


def _version(versions: Any, notes: Notes) -> int | None:
    """Return the version of the weights if all calls of a sample had the same integer version."""
    if not isinstance(versions, list | tuple) or not versions:
        return None
    names = {str(version) for version in versions}
    if len(names) > 1:
        notes.change(VERSIONS, 1)
        return None
    return version_number(names.pop())


def dashboard_samples(
    path: Path, step: int | None, notes: Notes, reward_key: str | None = None
) -> list[SlimeSample]:
    """Return the samples that have a response, from the dashboard's parquet or a whole dump."""
    table = read_whole(path)
    records = [
        {name: _cell(table[name], row) for name in table.column_names}
        for row in range(table.num_rows)
    ]
    about = table.schema.metadata or {}
    if LAYOUT in about:
        _decode(records, about, path)
    else:
        notes.change(NO_REMOVED, len(records))
    samples = []
    for position, values in enumerate(records):
        fields = Fields(values, f"{path}, row {position}")
        row = _row(fields, notes, reward_key)
        if row is not None:
            index = fields.integer("index" if LAYOUT in about else "sample_index")
            samples.append(SlimeSample({**row, "step": step}, position, index))
    return samples


def _decode(records: list[dict[str, Any]], about: Mapping[bytes, bytes], path: Path) -> None:
    """Replace torch files in the cells of a whole dump by their content."""
    if about[LAYOUT] != b"1":
        raise RcdiagError(
            f"{path}: layout {about[LAYOUT].decode(errors='replace')} of miles' dump in parquet",
            hint="rcdiag knows layout 1; write the dump as .pt, or look for a newer rcdiag",
        )
    try:
        encoded = [str(name) for name in json.loads(about[ENCODED])]
    except (KeyError, TypeError, ValueError) as error:
        raise RcdiagError(
            f"{path}: no list of columns in the metadata `{ENCODED.decode()}`",
            hint="the file was changed after miles wrote it; give the one that miles wrote",
        ) from error
    for position, record in enumerate(records):
        for name in encoded:
            cell = record.get(name)
            if not isinstance(cell, bytes):
                raise RcdiagError(
                    f"{path}, row {position}: `{name}` is not a torch file",
                    hint="the file was changed after miles wrote it; give the one that miles wrote",
                )
            where = f"{path}, row {position}, `{name}`"
            record[name] = load_torch(Content(where, memoryview(cell)), OF_MILES)


def _cell(column: Any, row: int) -> Any:
    value = column[row]
    is_list = isinstance(value, pa.ListScalar) and value.values is not None
    if is_list and pt.is_primitive(value.values.type):
        return as_numpy(value.values)
    return value.as_py()
