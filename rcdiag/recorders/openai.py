"""Columns for `Recorder.add` from responses of an OpenAI-compatible server.

    request = {"model": ..., "prompt": ..., "logprobs": 0, "n": 8, "temperature": 1.0}
    response = client.completions.create(**request, extra_body={"return_token_ids": True})
    recorder.add(**columns_of([response], [request]), step=12)

The text of tokens does not determine their ids, so ask vLLM for `return_token_ids` or
`return_tokens_as_token_ids`.
https://docs.vllm.ai/en/stable/serving/openai_compatible_server.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.reader import Notes
from rcdiag.table.readers.vllm import VllmLine, rows_of


def columns_of(
    responses: Sequence[Any], requests: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Return one row for each choice of the completions or chat completions, in their order.

    `responses` are objects of the `openai` package, or dicts. `requests` are the bodies that were
    sent, one for each response: only they have the sampling parameters. The choices of one response
    are a group. Choices without tokens, and failed requests, get no row.
    """
    if requests is not None and len(requests) != len(responses):
        raise RcdiagError(
            f"{len(requests)} requests for {len(responses)} responses", hint="give one for each"
        )
    rows: list[dict[str, Any]] = []
    for number, response in enumerate(responses):
        # Objects of the `openai` package keep unknown fields, such as token ids.
        plain = response.model_dump() if hasattr(response, "model_dump") else response
        record = {"response": plain}
        if requests is not None:
            record["request"] = dict(requests[number])
        try:
            line = msgspec.convert(record, VllmLine)
        except msgspec.ValidationError as error:
            raise RcdiagError(
                f"response {number}: {error}", hint="give the response as the server sent it"
            ) from error
        rows += rows_of(line, f"response {number}", Notes())
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {name: c for name, c in columns.items() if any(value is not None for value in c)}
