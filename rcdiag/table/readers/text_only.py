"""Encode dumps of text with a tokenizer, and measure how far the tokens can be trusted.

Different token sequences decode to the same text, so the tokenizer's tokens may not be those that
were sampled. The measurements are stored in the table's metadata under the key `reencoded`; no
log-prob is written, because none certainly belongs to these tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field

from rcdiag.errors import RcdiagError, first_line, setting
from rcdiag.extras import saying_what_to_install
from rcdiag.table.arrow import IDS
from rcdiag.table.readers.gather import gather
from rcdiag.table.readers.reader import Dump, Notes, Rows
from rcdiag.table.trajectories import REENCODED

TEXTS_AT_ONCE = 256
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# Hint for a text-only format whose trainer has no option to dump tokens.
RECORD = "record rows in the trainer itself by rcdiag.Recorder (docs/recording.md)"

AGAIN = (
    "Text was encoded again: tokens may differ from those that were sampled, and the recorded "
    "mismatch is lost."
)
DROPPED = "The dump holds no special tokens: end tokens and those of the chat template are missing."
SAME_TEXT = "Tokens of a response decode to its text, and encode to themselves."
OTHER_TEXT = "Tokens of a response decode to a text that differs from the dump's."
LOST = "The text of a response has a replacement character: bytes of its tokens are lost."
TOGETHER = "Prompt and response give other tokens as one text than separately."
OTHER_LENGTH = "The number of tokens of a response differs from the number in its record."
NO_MASK = "A response with messages of tools or users has no mask of what the policy sampled."

Messages = list[dict[str, Any]]


class TextRow(Struct, frozen=True):
    """One response as text, with the other values of its record."""

    number: int  # record number in its file
    prompt: str | Messages
    response: str | Messages
    columns: dict[str, Any] = field(default_factory=dict)
    tokens: int | None = None  # number of response tokens according to the record


def encoding(
    rows_of: Callable[[Path, Notes], Iterable[TextRow]], record: str = "line", *, specials: bool
) -> Callable[[Dump], Iterator[Rows]]:
    """Return a reader of dumps whose files `rows_of` reads one at a time; see `encoded`."""

    def read(dump: Dump) -> Iterator[Rows]:
        for file in dump.files:
            yield from encoded(rows_of(file, dump.notes), dump, file, record, specials=specials)

    return read


def encoded(
    rows: Iterable[TextRow], dump: Dump, file: Path, record: str = "line", *, specials: bool
) -> Iterator[Rows]:
    """Yield the rows of one file, with their texts encoded by the dump's tokenizer.

    `specials` says whether the dump's texts contain special tokens. If not, the tokenizer adds its
    own to a prompt, such as a beginning-of-sequence token.
    """
    tokenizer = load_tokenizer(str(dump.tokenizer))
    facts = dump.notes.facts.setdefault(REENCODED, {"tokenizer": str(dump.tokenizer)})
    if not specials:
        dump.notes.changes.setdefault(DROPPED, 0)
    dump.notes.changes.setdefault(AGAIN, 0)
    yield from gather(_rows(rows, tokenizer, dump.notes, facts, specials), file, record)


@cache
def load_tokenizer(folder: str) -> Any:
    """Load the tokenizer of a local folder; nothing is downloaded."""
    with saying_what_to_install(f"{setting('tokenizer', folder)}: "):
        from transformers import AutoTokenizer
    if not Path(folder).is_dir():
        raise RcdiagError(
            f"{setting('tokenizer', folder)}: no such folder",
            hint="give the folder of the checkpoint that sampled, with its tokenizer files",
        )
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError, AttributeError) as error:
        raise RcdiagError(
            f"{setting('tokenizer', folder)}: no tokenizer can be loaded ({first_line(error)})",
            hint="the folder needs tokenizer.json or the files of another tokenizer",
        ) from error


class _Encoded(Struct, frozen=True):
    """The tokens of one response, and the evidence whether they are those that were sampled."""

    text: str
    ids: Sequence[int]
    decoded: str  # the text to which these tokens decode
    same_together: bool  # whether encoding prompt + response as one text gives the same tokens
    counted: int | None  # number of tokens according to the record


def _rows(
    rows: Iterable[TextRow], tokenizer: Any, notes: Notes, facts: dict[str, Any], specials: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    waiting = iter(rows)
    while block := list(islice(waiting, TEXTS_AT_ONCE)):
        texts = [_texts(row, tokenizer, notes) for row in block]
        begins = [isinstance(row.prompt, str) and not specials for row in block]
        prompts = _ids(tokenizer, [prompt for prompt, _ in texts], begins)
        responses = _ids(tokenizer, [text for _, text in texts], [False] * len(block))
        together = _ids(tokenizer, [prompt + text for prompt, text in texts], begins)
        decoded = tokenizer.batch_decode(
            responses, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        made = [
            _Encoded(text, response, again, whole == prompt + response, row.tokens)
            for row, (_, text), prompt, response, whole, again in zip(
                block, texts, prompts, responses, together, decoded, strict=True
            )
        ]
        _measure(facts, notes, made)
        for row, prompt, response in zip(block, prompts, responses, strict=True):
            ids = {"prompt_ids": np.array(prompt, IDS), "response_ids": np.array(response, IDS)}
            yield row.number, {**ids, **row.columns}


def _ids(tokenizer: Any, texts: Sequence[str], with_specials: Sequence[bool]) -> list[list[int]]:
    """Return the tokens of texts; where the flag is set, with the tokenizer's special tokens."""
    ids: list[list[int]] = [[]] * len(texts)
    for flag in (False, True):
        places = [place for place, other in enumerate(with_specials) if other is flag]
        if places:
            chosen = [texts[place] for place in places]
            made = tokenizer(chosen, add_special_tokens=flag, verbose=False)["input_ids"]
            for place, row in zip(places, made, strict=True):
                ids[place] = row
    return ids


def _texts(row: TextRow, tokenizer: Any, notes: Notes) -> tuple[str, str]:
    """Return prompt and response as text; messages are rendered with the chat template."""
    if isinstance(row.response, list) and len(row.response) > 1:
        notes.change(NO_MASK, 1)
    if isinstance(row.prompt, str):
        return row.prompt, _joined(row.response)
    prompt = rendered(tokenizer, row.prompt, open_turn=True)
    if isinstance(row.response, list) and len(row.response) > 1:
        whole = rendered(tokenizer, [*row.prompt, *row.response], open_turn=False)
        if whole.startswith(prompt):
            return prompt, whole[len(prompt) :]
    return prompt, _joined(row.response)


def rendered(tokenizer: Any, messages: Messages, *, open_turn: bool) -> str:
    """Render messages to text; `open_turn` ends it where the policy begins to answer."""
    if not tokenizer.chat_template:
        raise RcdiagError(
            "the dump holds chat messages, but the tokenizer has no chat template",
            hint="give the tokenizer of the checkpoint that sampled, with its chat template",
        )
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=open_turn)
    return str(text)


def _joined(messages: str | Messages) -> str:
    """Return the concatenated contents of messages."""
    if isinstance(messages, str):
        return messages
    return "".join(content_text(message.get("content")) for message in messages)


def content_text(content: Any) -> str:
    """Return the text of a message, whose content may be a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _measure(facts: dict[str, Any], notes: Notes, block: Sequence[_Encoded]) -> None:
    """Update the statistics on whether tokens are those that were sampled.

    They count rows whose tokens decode to their text; whose prompt and response have the same
    tokens encoded together as separately; whose text has a replacement character, so that bytes
    are lost; whose record has a token count; and whose token count equals the present one.
    """
    counted = [row for row in block if row.counted is not None]
    more = {
        "rows": len(block),
        "rows_decoding_to_their_text": sum(row.decoded == row.text for row in block),
        "rows_with_the_same_tokens_together": sum(row.same_together for row in block),
        "rows_with_lost_bytes": sum(REPLACEMENT in row.text for row in block),
        "rows_with_token_count": len(counted),
        "rows_with_the_same_token_count": sum(len(row.ids) == row.counted for row in counted),
        "tokens": sum(len(row.ids) for row in block),
        "tokens_counted": sum(row.counted or 0 for row in counted),
        "tokens_where_counted": sum(len(row.ids) for row in counted),
    }
    for name, count in more.items():
        facts[name] = facts.get(name, 0) + count
    same = more["rows_decoding_to_their_text"]
    apart = len(block) - more["rows_with_the_same_tokens_together"]
    said = {SAME_TEXT: same, OTHER_TEXT: len(block) - same, TOGETHER: apart}
    for text, count in {**said, LOST: more["rows_with_lost_bytes"]}.items():
        if count:
            notes.change(text, count)
    if other := len(counted) - more["rows_with_the_same_token_count"]:
        notes.change(OTHER_LENGTH, other)
    facts["longest"] = max(facts.get("longest", 0), *(len(row.ids) for row in block))
    facts["share_decoding_to_their_text"] = facts["rows_decoding_to_their_text"] / facts["rows"]
    if facts["rows_with_token_count"]:
        facts["share_with_the_same_token_count"] = (
            facts["rows_with_the_same_token_count"] / facts["rows_with_token_count"]
        )
