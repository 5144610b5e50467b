"""Responses of the OpenAI servers of vLLM and SGLang, as JSON lines; one row per choice."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator, Sequence
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

OBJECTS = ("chat.completion", "text_completion")
ID_PREFIX = "token_id:"
TOKEN_ID = re.compile(rf"{ID_PREFIX}(\d{{1,10}})")
ASK = (
    "send the request with `return_token_ids: true` (or `return_tokens_as_token_ids: true`) and "
    "`logprobs`, and keep the whole response"
)
DAMAGED = "the file is damaged, or of a version of vLLM that rcdiag does not know"

FAILED = "a failed request has an error instead of a response: left out"
EMPTY = "a choice without any token has no response: left out"
ECHO = "log-probs of the prompt, which `echo` puts before those of the response, are left out"


class TokenContent(msgspec.Struct, gc=False):
    """One token of a chat response."""

    token: str | None = None
    logprob: float | None = None


class LogProbs(msgspec.Struct):
    """Log-probs of a choice: `content` in chats, lists in completions."""

    content: list[TokenContent] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None


class Choice(msgspec.Struct):
    index: Int | None = None
    token_ids: list[Id] | None = None
    response_token_ids: list[Id] | None = None  # SGLang's name in chats
    prompt_token_ids: list[Id] | None = None
    logprobs: LogProbs | None = None
    finish_reason: str | None = None
    routed_experts: str | None = None  # an .npy file in base64
    sampling_mask: list[list[Id]] | None = None  # kept ids, of /inference/v1/generate

    @property
    def ids(self) -> list[int] | None:
        """Return the ids of the response's tokens, if the request asked for them."""
        return self.response_token_ids if self.token_ids is None else self.token_ids


class Usage(msgspec.Struct):
    prompt_tokens: Int | None = None


class VllmResponse(msgspec.Struct):
    """A completion or a chat completion. In chats prompt ids are here, else in the choices."""

    id: str | Int | None = None
    object: str | None = None
    choices: list[Choice] | None = None
    prompt_token_ids: list[Id] | None = None
    usage: Usage | None = None
    error: Any = None


class Reply(VllmResponse):
    """A response, or a batch file's wrapper of one."""

    body: VllmResponse | None = None


class VllmLine(VllmResponse):
    """A response, or an object that stores it together with its request."""

    response: Reply | None = None
    request: Request | None = None
    body: Request | None = None


def _rows(file: Path, dump: Dump) -> Iterator[tuple[int, dict[str, Any]]]:
    for where, number, line in records(file, VllmLine):
        for row in rows_of(line, where, dump.notes, grouped="group_size" not in dump.given):
            yield number, row


def rows_of(
    line: VllmLine, where: str, notes: Notes, *, grouped: bool = True
) -> list[dict[str, Any]]:
    """Return the rows of one response, or of an object that stores it with its request.

    A row maps column names to values. `where` names the record in errors; `notes` records what is
    left out. If `grouped`, the choices of one response become a group.
    """
    # Unwrap the response.
    response = line if line.response is None else line.response.body or line.response
    request = request_of(line.request, line.body)
    if response.choices is None:
        if line.error is None and response.error is None and response.object != "error":
            raise RcdiagError(
                f"{where}: no `choices`, so this is not a response of a completion",
                hint="keep the response itself, or an object with the fields `request` and "
                "`response`",
            )
        notes.change(FAILED, 1)
        return []
    groups = _groups(response) if grouped else {}
    return [
        {**row, "group_id": groups.get(place), **sampling_of(request)}
        for place, choice in enumerate(response.choices)
        if (row := _row(choice, response, request, f"{where}, choice {place}", notes))
    ]


def _groups(response: VllmResponse) -> dict[int, str]:
    """Return the group of each choice: the response, or its prompt if the response has several."""
    choices = response.choices or []
    if response.id is None:
        return {}
    prompts = list(dict.fromkeys(tuple(choice.prompt_token_ids or ()) for choice in choices))
    return {
        place: f"{response.id}/{prompts.index(tuple(choice.prompt_token_ids or ()))}"
        if len(prompts) > 1
        else str(response.id)
        for place, choice in enumerate(choices)
    }


def _row(
    choice: Choice, response: VllmResponse, request: Request | None, where: str, notes: Notes
) -> dict[str, Any] | None:
    """Return the row of a choice; None if it has no tokens."""
    if (response.object or "").endswith(".chunk"):
        raise RcdiagError(
            f"{where}: a chunk of a streamed response",
            hint="keep responses that were not streamed: `stream: false`",
        )
    names: Sequence[str | None] = ()
    values: list[float | None] | None = None
    if choice.logprobs is not None and choice.logprobs.content is not None:
        names = [token.token for token in choice.logprobs.content]
        values = [token.logprob for token in choice.logprobs.content]
    elif choice.logprobs is not None:
        names, values = choice.logprobs.tokens or (), choice.logprobs.token_logprobs
    tokens = choice.ids
    prompt = choice.prompt_token_ids or response.prompt_token_ids
    if prompt is None and request is not None:
        prompt = tokens_in(request.prompt)
    echoed = _echoed(choice, values, prompt, response, request)
    if tokens is None:
        written = _ids_in(names, where)
        prompt, tokens = prompt or written[:echoed] or None, written[echoed:]
    if echoed:
        notes.change(ECHO, 1)
        values = values and values[echoed:]
    if not tokens:
        notes.change(EMPTY, 1)
        return None
    check_length(values, len(tokens), where, "logprobs", "token_ids")
    _check_names(names[echoed:], tokens, where)
    if values is not None and None in values:
        raise RcdiagError(
            f"{where}: the log-prob of token {values.index(None)} of the response is null",
            hint=ASK,
        )
    check_length(choice.sampling_mask, len(tokens), where, "sampling_mask", "token_ids")
    kept = None if choice.sampling_mask is None else kept_ids_of(choice.sampling_mask)
    return {
        "prompt_ids": None if prompt is None else ids(prompt),
        "response_ids": ids(tokens),
        "rollout_log_probs": None if values is None else floats(values),
        "finish_reason": choice.finish_reason,
        "rollout_kept_ids": kept,
        "rollout_routed_experts": _experts(choice, len(prompt or ()), len(tokens), where),
    }


def _echoed(
    choice: Choice,
    values: list[float | None] | None,
    prompt: list[int] | None,
    response: VllmResponse,
    request: Request | None,
) -> int:
    """Return the number of leading log-probs that belong to an echoed prompt."""
    if not values or not (values[0] is None or (request is not None and request.echo)):
        return 0
    if choice.ids is not None:
        return max(len(values) - len(choice.ids), 0)
    if prompt is not None:
        return len(prompt)
    usage = response.usage
    return (usage.prompt_tokens or 0) if usage and len(response.choices or ()) == 1 else 0


def _experts(choice: Choice, prompt: int, length: int, where: str) -> NDArray[np.uint16] | None:
    """Return the experts of the response's tokens, [length, layers, experts].

    The array ends with the rows of the response, except for its last token, which has none. Rows of
    the prompt may be missing if the request said so.
    """
    if choice.routed_experts is None:
        return None
    try:
        content = base64.b64decode(choice.routed_experts, validate=True)
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise RcdiagError(
            f"{where}: `routed_experts` is not an array in base64 ({error})", hint=DAMAGED
        ) from error
    before = len(array) + 1 - length if array.ndim else -1
    if not 0 <= before <= prompt:
        raise RcdiagError(
            f"{where}: `routed_experts` has the shape {array.shape}; prompt and response have "
            f"{prompt} and {length} tokens",
            hint=DAMAGED,
        )
    return Fields({"routed_experts": array}, where).experts("routed_experts", before, length)


def _check_names(names: Sequence[str | None], tokens: list[int], where: str) -> None:
    """Refuse log-probs whose tokens, if returned as ids, differ from the ids of the choice.

    Text is not compared, because several ids may have the same text.
    """
    for place, (name, token) in enumerate(zip(names, tokens, strict=False)):
        if name is None or not name.startswith(ID_PREFIX):
            return
        if name != f"{ID_PREFIX}{token}":
            raise RcdiagError(
                f"{where}: token {place} is {token} in `token_ids` and `{name}` in `logprobs`",
                hint="ids and log-probs of this choice do not belong together",
            )


def _ids_in(names: Sequence[str | None], where: str) -> list[int]:
    """Return the ids of tokens that were returned as "token_id:N"."""
    found = [TOKEN_ID.fullmatch(name or "") for name in names]
    if not found or None in found:
        raise RcdiagError(f"{where}: no token ids, only text", hint=ASK)
    numbers = [int(match[1]) for match in found if match]
    if max(numbers) > 2**31 - 1:
        raise RcdiagError(
            f"{where}: token id {max(numbers)} is larger than any vocabulary", hint=ASK
        )
    return numbers


def _detect(peek: Peek) -> bool:
    response = peek.record.get("response")
    body = response.get("body") if isinstance(response, dict) else None
    parts = (part for part in (peek.record, response, body) if isinstance(part, dict))
    if {"custom_id", "response"} <= peek.keys or peek.record.get("object") == "error":
        return True  # a batch file, or a file that begins with a failed request
    return any(str(part.get("object")).removesuffix(".chunk") in OBJECTS for part in parts)


VLLM = Reader(
    name="vllm",
    says="Responses of vLLM's OpenAI server with token ids, one to a line, with or without the "
    "request beside them.",
    patterns=("*.jsonl", "*.json"),
    detect=_detect,
    read=gathering(_rows),
    source="https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/openai",
)
