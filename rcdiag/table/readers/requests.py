"""A request stored with an engine's response, which has the sampling parameters."""

from __future__ import annotations

from typing import Any

import msgspec

from rcdiag.table.readers.jsonl import Int


class Sampling(msgspec.Struct):
    """Sampling parameters, under the names of OpenAI's API and of the engines."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None


class Request(Sampling):
    """The body of a request; clients put parameters that OpenAI does not know into extra_body."""

    extra_body: Sampling | None = None
    sampling_params: Sampling | None = None
    prompt: Any = None
    input_ids: Any = None
    echo: bool | None = None
    body: Request | None = None


def request_of(*places: Request | None) -> Request | None:
    """Return the first request that is not None, unwrapped if it comes from a batch file."""
    request = next((place for place in places if place is not None), None)
    return request.body or request if request is not None else None


def sampling_of(request: Request | None) -> dict[str, Any]:
    """Return the sampling parameters of a request as columns; empty if it has none."""
    columns: dict[str, Any] = {}
    if request is not None:
        for part in (request.sampling_params, request.extra_body, request):
            for name in Sampling.__struct_fields__:
                value = getattr(part, name, None)
                if value is not None:
                    columns[name] = value
    return columns


def tokens_in(value: Any) -> list[int] | None:
    """Return a prompt that was sent as token ids; None for text or several prompts."""
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return value
    return None
