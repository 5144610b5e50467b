"""Responses of SGLang's /generate, kept as JSON lines, hold a row each."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.kept_ids import kept_ids_of
from rcdiag.table.readers.gather import gathering
from rcdiag.table.readers.jsonl import Id, Int, check_length, floats, ids, records
from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.reader import Dump, Notes, Reader
from rcdiag.table.readers.requests import Request, request_of, sampling_of, tokens_in
from rcdiag.table.readers.samples import Fields

EMPTY = "a response without any token is left out"
NO_PROMPT = (
    "the prompt's token ids are not in a response: they are with `return_prompt_token_ids: true`, "
    "with `logprob_start_len: 0`, or with the request's `input_ids` beside it"
)
OVER_KEPT = (
    "rollout_log_probs are `output_token_sampling_logprobs`, over the kept ids, as the response "
    "has them too"
)
ASK = "send the request with `return_logprob: true`, and keep the whole response"

DAMAGED = "the response is damaged, or is not one of SGLang's with `return_routed_experts`"

LogProb = tuple[float | None, Id, str | None]


class Finish(msgspec.Struct):
    type: str | None = None


class Meta(msgspec.Struct):
    finish_reason: Finish | str | None = None
    prompt_tokens: Int | None = None
    weight_version: str | Int | None = None
    output_token_logprobs: list[LogProb] | None = None
    input_token_logprobs: list[LogProb] | None = None
    output_token_sampling_mask: list[list[Id]] | None = None  # kept ids
    # Log-probs over them: of the sampled token, or of every kept id.
    output_token_sampling_logprobs: list[float | list[float]] | None = None
    routed_experts: str | None = None  # int32 of [tokens, layers, top-k] in base64


class SglangResponse(msgspec.Struct):
    output_ids: list[Id] | None = None
    prompt_token_ids: list[Id] | None = None  # where the request asks for them
    meta_info: Meta | None = None


class SglangLine(SglangResponse):
    """A response, or an object that keeps it, or several of one request, beside the request."""

    response: SglangResponse | list[SglangResponse] | None = None
    request: Request | None = None
    body: Request | None = None


def _rows(file: Path, dump: Dump) -> Iterator[tuple[int, dict[str, Any]]]:
    for where, number, line in records(file, SglangLine):
        request = request_of(line.request, line.body)
        responses = line.response or line
        for response in responses if isinstance(responses, list) else [responses]:
            if row := _row(response, request, where, dump.notes):
                yield number, {**row, **sampling_of(request)}


def _row(
    response: SglangResponse, request: Request | None, where: str, notes: Notes
) -> dict[str, Any] | None:
    meta = response.meta_info
    if meta is None:
        raise RcdiagError(f"{where}: no `meta_info`", hint=ASK)
    recorded = meta.output_token_logprobs
    tokens = _tokens(response.output_ids, recorded, where)
    if not tokens:
        notes.change(EMPTY, 1)
        return None
    prompt = _prompt(response, meta, where) or (tokens_in(request.input_ids) if request else None)
    if prompt is None:
        notes.change(NO_PROMPT, 1)
    kept = meta.output_token_sampling_mask
    check_length(kept, len(tokens), where, "output_token_sampling_mask", "output_ids")
    log_probs = _over_kept_ids(meta, tokens, where)
    if log_probs is not None:
        notes.change(OVER_KEPT, 1)
    elif recorded is not None:
        log_probs = [value for value, _, _ in recorded]
    if log_probs is not None and None in log_probs:
        raise RcdiagError(
            f"{where}: `output_token_logprobs[{log_probs.index(None)}]` has no log-prob", hint=ASK
        )
    finish, version = meta.finish_reason, str(meta.weight_version).strip()
    # "default" says that no version was set.
    is_number = version.isascii() and version.isdigit() and len(version) < 19
    return {
        "prompt_ids": None if prompt is None else ids(prompt),
        "response_ids": ids(tokens),
        "rollout_log_probs": None if log_probs is None else floats(log_probs),
        "rollout_kept_ids": None if kept is None else kept_ids_of(kept),
        "finish_reason": finish.type if isinstance(finish, Finish) else finish,
        "policy_version": int(version) if is_number else None,
        "rollout_routed_experts": _experts(meta, prompt, len(tokens), where),
    }


def _over_kept_ids(meta: Meta, tokens: list[int], where: str) -> list[float | None] | None:
    """Return the log-probs of the response over its kept ids; None where they are not there."""
    kept, log_probs = meta.output_token_sampling_mask, meta.output_token_sampling_logprobs
    if kept is None or log_probs is None:
        return None
    check_length(log_probs, len(tokens), where, "output_token_sampling_logprobs", "output_ids")
    own: list[float | None] = []
    for place, (token, ids_there, value) in enumerate(zip(tokens, kept, log_probs, strict=True)):
        if not isinstance(value, list):
            own.append(value)
            continue
        if token not in ids_there or len(value) != len(ids_there):
            raise RcdiagError(
                f"{where}: `output_token_sampling_logprobs[{place}]` has {len(value)} values for "
                f"{len(ids_there)} ids, which should be those of token {token} among them",
                hint="ids and log-probs of this response do not belong together",
            )
        own.append(value[ids_there.index(token)])
    return own


def _experts(
    meta: Meta, prompt: list[int] | None, length: int, where: str
) -> NDArray[np.uint16] | None:
    """Return the experts of the response's tokens, [length, 1, layers x top-k], layer by layer.

    The engine gives them for prompt and response but the last token, or for all of them.
    """
    if meta.routed_experts is None:
        return None
    before = meta.prompt_tokens if prompt is None else len(prompt)
    try:
        content = base64.b64decode(meta.routed_experts, validate=True)
        values = np.frombuffer(content, np.dtype("<i4"))
    except ValueError as error:
        raise RcdiagError(
            f"{where}: `routed_experts` are no int32 in base64 ({error})", hint=DAMAGED
        ) from error
    if before is None:
        raise RcdiagError(
            f"{where}: `routed_experts` of prompt and response, and no `prompt_tokens`", hint=ASK
        )
    counts = [count for count in (before + length - 1, before + length) if count]
    rows = next((count for count in counts if len(values) % count == 0), None)
    if rows is None:
        raise RcdiagError(
            f"{where}: `routed_experts` has {len(values)} numbers; prompt and response have "
            f"{before} and {length} tokens",
            hint=DAMAGED,
        )
    fields = Fields({"routed_experts": values.reshape(rows, 1, -1)}, where)
    return fields.experts("routed_experts", before, length)


def _tokens(output: list[int] | None, recorded: list[LogProb] | None, where: str) -> list[int]:
    """Return the response's ids; those beside the log-probs have to be the same."""
    if recorded is None:
        if output is None:
            raise RcdiagError(
                f"{where}: neither `output_ids` nor `output_token_logprobs`", hint=ASK
            )
        return output
    beside = [token for _, token, _ in recorded]
    if output is None:
        return beside
    check_length(recorded, len(output), where, "output_token_logprobs", "output_ids")
    if beside != output:
        place = next(i for i in range(len(output)) if beside[i] != output[i])
        raise RcdiagError(
            f"{where}: token {place} is {output[place]} in `output_ids` and {beside[place]} in "
            "`output_token_logprobs`",
            hint="ids and log-probs of this response do not belong together",
        )
    return output


def _prompt(response: SglangResponse, meta: Meta, where: str) -> list[int] | None:
    """Return the prompt's ids where the engine was asked for them, or for all their log-probs."""
    asked, recorded = response.prompt_token_ids, meta.input_token_logprobs
    if not recorded or len(recorded) != meta.prompt_tokens:
        return asked
    beside = [token for _, token, _ in recorded]
    if asked is not None and asked != beside:
        raise RcdiagError(
            f"{where}: `prompt_token_ids` are other tokens than those in `input_token_logprobs`",
            hint="ids and log-probs of this response do not belong together",
        )
    return beside


def _detect(peek: Peek) -> bool:
    response = peek.record.get("response", peek.record)
    if isinstance(response, list) and response:
        response = response[0]
    meta = response.get("meta_info") if isinstance(response, dict) else None
    return isinstance(meta, dict) and (
        "output_token_logprobs" in meta or "completion_tokens" in meta
    )


SGLANG = Reader(
    name="sglang",
    says="Responses of SGLang's /generate with log-probs, one to a line, with or without the "
    "request beside them.",
    patterns=("*.jsonl", "*.json"),
    detect=_detect,
    read=gathering(_rows),
    source="https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/io_struct.py",
)
