"""NeMo-Gym's rollouts, JSON lines with token ids in the items that the model generated.

A line is a whole trajectory: a response of OpenAI's Responses API whose `output` has all turns. In
each turn, one item carries the tokens; its `prompt_token_ids` are the whole context of that call.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import field
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.gather import gathering
from rcdiag.table.readers.jsonl import Id, Int, records
from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.reader import DAMAGED, Dump, Notes, Reader
from rcdiag.table.readers.samples import Fields
from rcdiag.table.readers.text_only import content_text
from rcdiag.table.readers.turns import Turn, rows_of_turns, turn_of

ASK = (
    "rollouts with token ids need a model server with `return_token_id_information: true` "
    "(vllm_model_for_training.yaml) and an agent that passes them on, as simple_agent does; "
    "collect them again this way, or record rows in the trainer with rcdiag.Recorder "
    "(docs/recording.md)"
)

FAILED = "a rollout that failed (_ng_failure_class) is left out"
WITHOUT_IDS = "a rollout whose agent recorded no token ids is left out"
COPIED = (
    "a message with which an agent padded its output, a copy of an earlier turn or a single token "
    "0, is left out"
)
MASKED = "a rollout that its environment flags (mask_sample) keeps its rows; response_mask is 0"
# NeMo-RL's name of its form of experts in one text, and the dtypes that it may hold.
PACKED, PACKED_DTYPES = "nrlre1", ("int8", "int16", "int32")


class Item(msgspec.Struct):
    """An item of the output; items of tools and users have no tokens."""

    type: str | None = None
    role: str | None = None
    content: Any = None
    name: str | None = None  # of the tool that is called
    arguments: Any = None
    output: Any = None  # the tool's answer
    prompt_token_ids: list[Id] | None = None
    generation_token_ids: list[Id] | None = None
    generation_log_probs: list[float] | None = None
    routed_experts: str | list[list[list[Int]]] | None = None


class Incomplete(msgspec.Struct):
    reason: str | None = None


class Sampled(msgspec.Struct):
    temperature: float | None = None
    top_p: float | None = None


class CreateParams(Sampled):
    input: Any = None  # text, or a list of items


class GymResponse(Sampled):
    output: list[Item] | None = None
    incomplete_details: Incomplete | None = None
    model: str | None = None


class AgentRef(msgspec.Struct):
    name: str | None = None


class GymRollout(GymResponse):
    """A rollout that holds the request and the response, or a response alone."""

    response: GymResponse | None = None
    # The round-trip data of Gym's own tests keep a response here; a request has a text or a list.
    input: Any = None
    responses_create_params: CreateParams | None = None
    reward: float | None = None
    agent_ref: AgentRef | None = None
    mask_sample: bool | None = None
    task_index: Int | None = field(default=None, name="_ng_task_index")
    rollout_index: Int | None = field(default=None, name="_ng_rollout_index")
    failure: Any = field(default=None, name="_ng_failure_class")


def _rows(file: Path, dump: Dump) -> Iterator[tuple[int, dict[str, Any]]]:
    for where, number, rollout in records(file, GymRollout):
        if rollout.failure is not None:
            dump.notes.change(FAILED, 1)
            continue
        turns = list(_turns(rollout, number, where, dump.notes))
        if not turns:
            dump.notes.change(WITHOUT_IDS, 1)
        elif rollout.mask_sample:
            dump.notes.change(MASKED, 1)
        task, sample = rollout.task_index, rollout.rollout_index
        columns = {
            "reward": rollout.reward,
            "group_id": None if task is None else str(task),
            "trajectory": None if task is None or sample is None else f"{task}/{sample}",
            "agent": rollout.agent_ref.name if rollout.agent_ref else None,
        }
        for _, row in rows_of_turns(turns, dump, columns):
            if rollout.mask_sample:
                row["response_mask"] = np.zeros_like(row["response_mask"])
            yield number, row


def _response(rollout: GymRollout, where: str) -> GymResponse:
    if rollout.response is not None:
        return rollout.response
    if rollout.output is not None:
        return rollout
    if isinstance(rollout.input, dict):
        try:
            return msgspec.convert(rollout.input, GymResponse)
        except msgspec.ValidationError as error:
            raise RcdiagError(f"{where}: `input`: {error}", hint=ASK) from error
    return GymResponse()


def _turns(rollout: GymRollout, number: int, where: str, notes: Notes) -> Iterator[Turn]:
    """Yield the turns of a rollout that carry tokens."""
    response = _response(rollout, where)
    if response.output is None:
        raise RcdiagError(
            f"{where}: no `output`, so this is not a response of NeMo-Gym",
            hint="give the rollouts, not the inputs that they were made from",
        )
    asked = rollout.responses_create_params or CreateParams()
    question: list[dict[str, Any]] = []
    if isinstance(asked.input, str):
        question = [{"role": "user", "content": asked.input}]
    elif isinstance(asked.input, list):
        question = _messages(msgspec.convert(asked.input, list[Item]))
    # Items of tools have no tokens; some agents write empty lists for them.
    sampled = [
        (place, item)
        for place, item in enumerate(response.output)
        if item.generation_token_ids or item.generation_log_probs
    ]
    # At its limit, an agent may pad the output with a message: a copy of the last turn.
    seen: list[tuple[list[int] | None, list[int]]] = [([0], [0])]
    for place, item in sampled:
        tokens = item.generation_token_ids or []
        if (item.prompt_token_ids, tokens) in seen:
            notes.change(COPIED, 1)
            continue
        seen.append((item.prompt_token_ids, tokens))
        incomplete = response.incomplete_details if item is sampled[-1][1] else None
        # A call returns several items (reasoning, tool calls); only the last one has the tokens.
        first = place
        while first and not (
            _answers(response.output[first - 1]) or response.output[first - 1].generation_token_ids
        ):
            first -= 1
        yield turn_of(
            number,
            f"{where}, output {place}",
            item.prompt_token_ids or None,
            tokens,
            item.generation_log_probs or None,
            ("generation_log_probs", "generation_token_ids"),
            temperature=asked.temperature if response.temperature is None else response.temperature,
            top_p=asked.top_p if response.top_p is None else response.top_p,
            finish_reason=incomplete.reason if incomplete else None,
            experts=_experts(item, f"{where}, output {place}"),
            messages=[*question, *_messages(response.output[:first])],
        )


def _experts(item: Item, where: str) -> NDArray[np.uint16] | None:
    """Return the experts of an item's prompt and generation, [tokens, layers, experts].

    A token that vLLM did not record, for which NeMo-RL writes -1 throughout, gets 0.
    """
    if item.routed_experts is None:
        return None
    try:
        array = _array(item.routed_experts)
    except ValueError as error:
        says = f"`routed_experts` is not an array ({error})"
        raise RcdiagError(f"{where}: {says}", hint=DAMAGED) from error
    unknown = (array == -1).all(axis=tuple(range(1, array.ndim)), keepdims=True)
    fields = Fields({"routed_experts": np.where(unknown, 0, array)}, where)
    tokens = len(item.prompt_token_ids or ()) + len(item.generation_token_ids or ())
    return fields.experts("routed_experts", 0, tokens)


def _array(experts: str | list[list[list[int]]]) -> NDArray[np.integer]:
    """Return experts as an array, from lists or from `nrlre1:DTYPE:TOKENSxLAYERSxEXPERTS:BASE64`.

    https://github.com/NVIDIA-NeMo/RL/blob/main/nemo_rl/utils/routed_experts_codec.py
    """
    if isinstance(experts, list):
        return np.array(experts)
    form, _, rest = experts.partition(":")
    dtype, shape, content = rest.split(":") if form == PACKED else ("", "", "")
    if dtype not in PACKED_DTYPES:
        raise ValueError(f"it begins with {experts[:16]!r}")
    values = np.frombuffer(b64decode(content, validate=True), np.dtype(dtype).newbyteorder("<"))
    return values.reshape([int(size) for size in shape.split("x")])


def _answers(item: Item) -> bool:
    """Tell whether an item comes from a tool or a user, not from the model."""
    return item.type == "function_call_output" or item.role in ("user", "system", "developer")


def _messages(items: list[Item]) -> list[dict[str, Any]]:
    """Return items of the Responses API as chat messages; items of one call form one message."""
    messages: list[dict[str, Any]] = []
    for item in items:
        if item.type == "function_call_output":
            messages.append({"role": "tool", "content": item.output})
        elif _answers(item):
            messages.append({"role": item.role, "content": content_text(item.content)})
        else:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            if item.type == "function_call":
                call = {"name": item.name, "arguments": item.arguments}
                messages[-1].setdefault("tool_calls", []).append({"function": call})
            else:
                messages[-1]["content"] += content_text(item.content)
    return messages


def _detect(peek: Peek) -> bool:
    record = peek.record
    if record.get("response", ...) is None and "_ng_task_index" in record:
        return True  # a rollout that failed
    places = (record, record.get("response"), record.get("input"))
    return any(
        isinstance(place, dict)
        and place.get("object") == "response"
        and isinstance(place.get("output"), list)
        for place in places
    )


NEMO_GYM = Reader(
    name="nemo-gym",
    says="NeMo-Gym's rollouts, JSON lines that `ng_collect_rollouts` or `gym eval run` wrote.",
    patterns=("*.jsonl", "*.json"),
    detect=_detect,
    read=gathering(_rows, "rollouts of NeMo-Gym, and none of them has token ids", ASK),
    source="https://github.com/NVIDIA-NeMo/Gym/blob/main/nemo_gym/openai_utils.py",
)
