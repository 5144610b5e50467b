"""Compare prompts of later turns with the chat template, if a dump has their messages.

A loop that appends tokens turn by turn may lose a token that the template puts between two
messages, or add one (verl #6501). The tokens from the end of a sampled turn to the end of the next
prompt must be those that the template produces for the same messages. Tokens before that may differ
without being wrong: tools are often not in the dump, and templates drop earlier thinking.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.reader import Notes
from rcdiag.table.readers.text_only import Messages, load_tokenizer, rendered
from rcdiag.table.trajectories import CHAT_TEMPLATE

AGREE = "sampled turns are followed by the chat template's tokens"
LOST = "sampled turns lack the token with which the chat template follows them"
ADDED = "sampled turns are followed by one token more than in the chat template"
OTHER = "prompts of later turns differ from their messages in the chat template"


class ChatTemplate:
    """Counts, for the whole dump, where the tokens of prompts differ from the template's."""

    def __init__(self, tokenizer: str, notes: Notes) -> None:
        self._tokenizer = load_tokenizer(tokenizer)
        self._notes = notes
        self._facts = notes.facts.setdefault(
            CHAT_TEMPLATE,
            {"tokenizer": tokenizer, "rows": 0, "rows_off": 0, "boundaries": 0}
            | {"lost": 0, "added": 0, "token": None},
        )

    def compare(self, boundaries: Sequence[tuple[NDArray[np.int32], int, Messages]]) -> None:
        """Compare the prompts of one row's later turns with the template.

        Each comes with the end of the sampled tokens in it, and with its messages.
        """
        off = 0
        for prompt, end, messages in boundaries:
            kind, token = self._compared(prompt.tolist(), end, messages)
            self._notes.change(kind, 1)
            self._facts["boundaries"] += 1
            if kind in (LOST, ADDED):
                off += 1
                self._facts["lost" if kind == LOST else "added"] += 1
                self._facts["token"] = token
        self._facts["rows"] += 1
        self._facts["rows_off"] += off > 0

    def _compared(self, prompt: list[int], end: int, messages: Messages) -> tuple[str, int | None]:
        """Describe how a prompt differs after `end`, and return the lost or added token."""
        try:
            text = rendered(self._tokenizer, messages, open_turn=True)
        except RcdiagError:
            raise
        except Exception:  # a template is a program, which may raise anything
            return OTHER, None
        whole = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        same = 0
        while same < min(len(prompt), len(whole)) and prompt[-1 - same] == whole[-1 - same]:
            same += 1
        parts, rest = len(prompt) - same, len(whole) - same
        if parts < end:
            return AGREE, None
        if parts == end and rest >= 2 and whole[rest - 2] == prompt[end - 1]:
            return LOST, whole[rest - 1]
        twice = parts == end and prompt[end] == prompt[end - 1]
        if twice and rest >= 1 and end >= 2 and whole[rest - 1] == prompt[end - 2]:
            return ADDED, prompt[end]
        if parts == end + 1 and rest >= 1 and whole[rest - 1] == prompt[end - 1]:
            return ADDED, prompt[end]
        return OTHER, None
