"""Responses of SGLang's /generate, as JSON lines; one row per response."""

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
from rcdiag.table.readers.samples import Fields, version_number
from rcdiag.table.trajectories import Ragged

EMPTY = "a response without any token is left out"
NO_PROMPT = (
    "a response lacks the token ids of its prompt: they are included with "
    "`return_prompt_token_ids: true`, with `logprob_start_len: 0`, or if the request's `input_ids` "
    "are stored with it"
)
OVER_KEPT = (
    "rollout_log_probs are `output_token_sampling_logprobs`, normalised over the kept ids, which "
    "the response also has"
)
ASK = "send the request with `return_logprob: true`, and keep the whole response"

DAMAGED = "the response is damaged, or not written by SGLang"
# Names of ids and offsets in different versions of slime's SGLang.
KEPT_BY_SLIME = (
    ("top_p_token_ids", "top_p_token_offsets"),
    ("top_p_kept_token_ids", "top_p_kept_token_offsets"),
)

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
    # Log-probs over the kept ids: only of the sampled token, or of every kept id.
    output_token_sampling_logprobs: list[float | list[float]] | None = None
    routed_experts: str | None = None  # int32 [tokens, layers, top-k] in base64
    routed_experts_start_len: Int | None = None  # number of leading tokens without experts
    # Kept ids in slime's SGLang, int32 in base64.
    top_p_token_ids: str | None = None
    top_p_token_offsets: str | None = None
    top_p_kept_token_ids: str | None = None
    top_p_kept_token_offsets: str | None = None


class SglangResponse(msgspec.Struct):
    output_ids: list[Id] | None = None
    prompt_token_ids: list[Id] | None = None  # if the request asks for them
    meta_info: Meta | None = None


class SglangLine(SglangResponse):
    """One or several responses to a request, optionally stored together with the request."""

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
    kept = _kept_ids(meta, len(tokens), where)
    log_probs = _over_kept_ids(meta, tokens, where)
    if log_probs is not None:
        notes.change(OVER_KEPT, 1)
    elif recorded is not None:
        log_probs = [value for value, _, _ in recorded]
    if log_probs is not None and None in log_probs:
        raise RcdiagError(
            f"{where}: `output_token_logprobs[{log_probs.index(None)}]` has no log-prob", hint=ASK
        )
    finish = meta.finish_reason
    return {
        "prompt_ids": None if prompt is None else ids(prompt),
        "response_ids": ids(tokens),
        "rollout_log_probs": None if log_probs is None else floats(log_probs),
        "rollout_kept_ids": kept,
        "finish_reason": finish.type if isinstance(finish, Finish) else finish,
        "policy_version": version_number(meta.weight_version),  # "default": none was set
        "rollout_routed_experts": _experts(meta, prompt, len(tokens), where),
    }


def _kept_ids(meta: Meta, length: int, where: str) -> Ragged | None:
    """Return the kept ids of the response's tokens, as SGLang or slime's SGLang returns them."""
    lists = meta.output_token_sampling_mask
    check_length(lists, length, where, "output_token_sampling_mask", "output_ids")
    if lists is not None:
        return kept_ids_of(lists)
    names = [name for pair in KEPT_BY_SLIME for name in pair if getattr(meta, name) is not None]
    fields = Fields({name: _int32(getattr(meta, name), name, where) for name in names}, where)
    return next((kept for pair in KEPT_BY_SLIME if (kept := fields.kept_ids(*pair, length))), None)


def _over_kept_ids(meta: Meta, tokens: list[int], where: str) -> list[float | None] | None:
    """Return the response's log-probs normalised over its kept ids; None if not recorded."""
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
                f"{len(ids_there)} ids, which should include token {token}",
                hint="ids and log-probs of this response do not belong together",
            )
        own.append(value[ids_there.index(token)])
    return own


def _experts(
    meta: Meta, prompt: list[int] | None, length: int, where: str
) -> NDArray[np.uint16] | None:
    """Return the experts of the response's tokens, [length, 1, layers x top-k], layer by layer.

    The engine returns them for all tokens of prompt and response, with or without the last, and
    without the first tokens of the prompt if the request says so.
    """
    if meta.routed_experts is None:
        return None
    before = meta.prompt_tokens if prompt is None else len(prompt)
    values = _int32(meta.routed_experts, "routed_experts", where)
    if before is None:
        raise RcdiagError(
            f"{where}: `routed_experts` of prompt and response, but no `prompt_tokens`", hint=ASK
        )
    skipped = meta.routed_experts_start_len or 0
    if not 0 <= skipped <= before:
        raise RcdiagError(
            f"{where}: `routed_experts_start_len` is {skipped}; the prompt has {before} tokens",
            hint=DAMAGED,
        )
    before -= skipped
    counts = [count for count in (before + length - 1, before + length) if count]
    rows = next((count for count in counts if len(values) % count == 0), None)
    if rows is None:
        raise RcdiagError(
            f"{where}: `routed_experts` has {len(values)} numbers; prompt and response have "
            f"{before} and {length} tokens" + (f" from token {skipped} on" if skipped else ""),
            hint=DAMAGED,
        )
    fields = Fields({"routed_experts": values.reshape(rows, 1, -1)}, where)
    return fields.experts("routed_experts", before, length)


def _int32(text: str, name: str, where: str) -> NDArray[np.int32]:
    """Decode an int32 array from base64."""
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), np.dtype("<i4"))
    except ValueError as error:
        raise RcdiagError(f"{where}: `{name}` is not int32 in base64 ({error})", DAMAGED) from error


def _tokens(output: list[int] | None, recorded: list[LogProb] | None, where: str) -> list[int]:
    """Return the response's ids; raise an error if the ids stored with the log-probs differ."""
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
    """Return the prompt's ids, if the request asked for them or for all prompt log-probs."""
    asked, recorded = response.prompt_token_ids, meta.input_token_logprobs
    if not recorded or len(recorded) != meta.prompt_tokens:
        return asked
    beside = [token for _, token, _ in recorded]
    if asked is not None and asked != beside:
        raise RcdiagError(
            f"{where}: `prompt_token_ids` differ from the tokens in `input_token_logprobs`",
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
