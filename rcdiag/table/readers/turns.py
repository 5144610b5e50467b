"""Join turns of a trajectory to rows, with the same rule for all formats of single turns.

A turn is one call of the sampler; its prompt is the whole context. If that prompt begins with all
tokens of the earlier turns, the turn continues their row: the tokens in between come from tools and
templates, and their response_mask is 0. If it does not, the history was rewritten (Qwen3's chat
template drops earlier thinking, agents summarise), and the turn starts a new row: in the old row,
its tokens would have a context that no engine saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.hashing import hashed_lists
from rcdiag.table.readers.chat_template import ChatTemplate
from rcdiag.table.readers.jsonl import check_length, floats, ids
from rcdiag.table.readers.reader import DAMAGED, Dump, Notes
from rcdiag.table.trajectories import Ragged

Tokens = NDArray[np.int32]

EMPTY = "a turn without any sampled token is left out"
JOINED = "turns of one trajectory were joined into a row; tokens between them have response_mask 0"
SPLIT = (
    "a turn whose prompt does not begin with the tokens of the turns before it (its history was "
    "rewritten) begins another row of its trajectory; `turn` is the number of a row's first "
    "turn, from 0"
)
FIRST = (
    "the first turn that begins another row is {turn}: its prompt differs from the tokens before "
    "it from place {place} on"
)
NO_PROMPT = "a turn is a row of its own if prompt ids do not show which turns it continues"
GROUPED = "group_id: trajectories with equal first prompts are a prompt group"
MIXED = "turns of one row differ in {name}: it is unknown"


class Turn(Struct, frozen=True):
    """A sampled sequence, with the whole context before it."""

    record: int  # its number in the file
    where: str  # file, record and turn, for messages
    prompt: Tokens | None  # None if not recorded
    tokens: Tokens
    # Column -> one number per sampled token; a row has the columns that all its turns have.
    numbers: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)  # a row has the values that turns share
    messages: list[Any] | None = None  # the chat messages before it, if the dump has them
    # Experts of prompt and sampled tokens, [tokens, layers, experts]; all 0 where not recorded.
    experts: NDArray[np.uint16] | None = None
    # Sequences sampled by the same call have the same context and do not continue each other.
    call: Any = None


def turn_of(
    record: int,
    where: str,
    prompt: list[int] | None,
    tokens: list[int],
    log_probs: list[float] | None,
    names: tuple[str, str],
    *,
    call: Any = None,
    messages: list[Any] | None = None,
    experts: NDArray[np.uint16] | None = None,
    **columns: Any,
) -> Turn:
    """Return a turn from the lists in a record; `names` are the fields of log-probs and tokens."""
    check_length(log_probs, len(tokens), where, *names)
    known = {} if log_probs is None else {"rollout_log_probs": floats(log_probs)}
    return Turn(
        record=record,
        where=where,
        prompt=None if prompt is None else ids(prompt),
        tokens=ids(tokens),
        numbers=known,
        columns=columns,
        messages=messages,
        experts=experts,
        call=call,
    )


class JoinedTurns(Struct):
    """A row: turns whose prompts each begin with all tokens before."""

    turns: list[Turn]
    first: int  # number of its first turn in the trajectory, from 0

    def goes_on_in(self, turn: Turn) -> bool:
        """Tell whether a turn's prompt begins with all tokens so far."""
        last = self.turns[-1]
        if last.prompt is None or turn.prompt is None:
            return False
        if turn.call is not None and turn.call == last.call:
            return False
        # Sampled tokens are compared first: they are fewer, and most rewriting concerns them.
        end = self.length
        start = end - len(last.tokens)
        return (
            len(turn.prompt) >= end
            and np.array_equal(turn.prompt[start:end], last.tokens)
            and np.array_equal(turn.prompt[:start], last.prompt)
        )

    @property
    def length(self) -> int:
        """Return the number of tokens so far, including the prompt."""
        last = self.turns[-1]
        return len(last.tokens) if last.prompt is None else len(last.prompt) + len(last.tokens)

    def parts_from(self, prompt: Tokens) -> int:
        """Return the first position at which a prompt differs from the tokens so far."""
        last = self.turns[-1]
        assert last.prompt is not None
        known = np.concatenate([last.prompt, last.tokens])
        size = min(len(known), len(prompt))
        other = np.flatnonzero(known[:size] != prompt[:size])
        return int(other[0]) if len(other) else size

    def row(self) -> dict[str, Any]:
        """Return the token columns of the row; numbers of tokens that were not sampled are 0.0."""
        first, last = self.turns[0], self.turns[-1]
        if first.prompt is None or last.prompt is None:
            mask = np.ones(len(first.tokens), np.uint8)
            return {"response_ids": first.tokens, "response_mask": mask, **first.numbers}
        response = np.concatenate([last.prompt[len(first.prompt) :], last.tokens])
        mask = np.zeros(len(response), np.uint8)
        having = set.intersection(*(set(turn.numbers) for turn in self.turns))
        numbers = {name: np.zeros(len(response), np.float32) for name in sorted(having)}
        for turn in self.turns:
            assert turn.prompt is not None
            start = len(turn.prompt) - len(first.prompt)
            sampled = slice(start, start + len(turn.tokens))
            mask[sampled] = 1
            for name, values in numbers.items():
                values[sampled] = turn.numbers[name]
        return {
            "prompt_ids": first.prompt,
            "response_ids": response,
            "response_mask": mask,
            "rollout_routed_experts": self._experts(len(first.prompt), len(response)),
            **numbers,
        }

    def _experts(self, prompt: int, length: int) -> NDArray[np.uint16] | None:
        """Return the experts of the response's tokens, [length, layers, experts]; 0 if unknown.

        A turn recorded those of its whole context but its last token, which no engine had read yet.
        That token and those between turns get the experts of the next turn, which read them first.
        """
        made: NDArray[np.uint16] | None = None
        start = prompt
        for turn in self.turns:
            assert turn.prompt is not None
            end = len(turn.prompt) + len(turn.tokens) - 1
            if turn.experts is not None:
                shape = turn.experts.shape[1:]
                made = np.zeros((length, *shape), np.uint16) if made is None else made
                if shape != made.shape[1:]:
                    raise RcdiagError(
                        f"{turn.where}: a token has {shape} experts, layers x chosen ones, and "
                        f"{made.shape[1:]} in turns before",
                        hint=DAMAGED,
                    )
                made[start - prompt : end - prompt] = turn.experts[start:end]
            start = end
        return made

    def boundaries(self) -> list[tuple[Tokens, int, list[Any]]]:
        """Return (prompt, end of the sampled tokens in it, messages) of later turns."""
        return [
            (turn.prompt, len(before.prompt) + len(before.tokens), turn.messages)
            for before, turn in pairwise(self.turns)
            if before.prompt is not None and turn.prompt is not None and turn.messages
        ]

    def shared(self, notes: Notes) -> dict[str, Any]:
        """Return the columns whose value all turns share, and the last turn's finish reason."""
        columns = dict(self.turns[-1].columns)
        for name in columns:
            values = {turn.columns.get(name) for turn in self.turns}
            if name != "finish_reason" and len(values) > 1:
                notes.change(MIXED.format(name=name), 1)
                columns[name] = None
        return columns


def joined(turns: Sequence[Turn], notes: Notes) -> list[JoinedTurns]:
    """Join the turns of one trajectory, given in sampling order, to rows.

    A turn continues the longest row whose tokens its prompt begins with.
    """
    rows: list[JoinedTurns] = []
    numbers: dict[Any, int] = {}  # call -> number of its turn; all samples of a call are one turn
    for place, turn in enumerate(turns):
        call = ("turn", place) if turn.call is None else turn.call
        number = numbers.setdefault(call, len(numbers))
        before = [row for row in rows if row.goes_on_in(turn)]
        if before:
            max(before, key=lambda row: row.length).turns.append(turn)
            continue
        if rows and number not in {row.first for row in rows}:
            _note_split(turn, rows, notes)
        rows.append(JoinedTurns([turn], number))
    for row in rows:
        if len(row.turns) > 1:
            notes.change(JOINED, 1)
    return rows


def _note_split(turn: Turn, rows: Sequence[JoinedTurns], notes: Notes) -> None:
    """Note a turn that begins a new row; for the first, also where its prompt differs."""
    known = [row for row in rows if row.turns[-1].prompt is not None]
    if turn.prompt is None or not known:
        notes.change(NO_PROMPT, 1)
        return
    if SPLIT not in notes.changes:
        place = max(row.parts_from(turn.prompt) for row in known)
        notes.change(FIRST.format(turn=turn.where.rpartition("/")[2], place=f"{place:,}"), 1)
    notes.change(SPLIT, 1)


def rows_of_turns(
    turns: Iterable[Turn], dump: Dump, columns: dict[str, Any]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of one trajectory, with `columns` and the number of their first record.

    All rows of a trajectory belong to one prompt group. Without a group in `columns`, trajectories
    are grouped by the prompt of their first turn, as prompts of later turns differ. If there is a
    tokenizer, prompts of turns with messages are compared with its chat template.
    """
    notes = dump.notes
    template = None if dump.tokenizer is None else ChatTemplate(dump.tokenizer, notes)
    sampled = []
    for turn in turns:
        if len(turn.tokens):
            sampled.append(turn)
        else:
            notes.change(EMPTY, 1)
    if sampled and columns.get("group_id") is None and sampled[0].prompt is not None:
        prompt = sampled[0].prompt
        (number,) = hashed_lists(Ragged(prompt, np.array([0, len(prompt)])))
        columns = {**columns, "group_id": f"{number:016x}"}
        notes.changes.setdefault(GROUPED, 0)
    for row in joined(sampled, notes):
        if template is not None:
            template.compare(row.boundaries())
        yield (
            row.turns[0].record,
            {**row.row(), **row.shared(notes), "turn": row.first, **columns},
        )
