"""New answers of the sample policy with recorded values, and scores of given tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tests.faults.law import Law
from tests.faults.network import EMBEDDING, Network, State, advance, empty_state, logits_of
from tests.faults.prompts import CALL_END, END, Question, reward, tool_result

ROWS_AT_ONCE = 32
# Values kept per token: its log-prob under the network (raw) and under the distribution
# that drew it (processed), the entropies of both, and the log-prob of the law's likeliest token.
KEPT = ("raw", "processed", "raw_entropy", "entropy", "top")

Rows = list[np.ndarray]
Values = dict[str, np.ndarray]


@dataclass
class Contexts:
    """Contexts before the responses of some rows, and how one side processes them."""

    ids: Rows  # tokens of the distinct contexts
    of_row: np.ndarray  # [rows] index of a context
    positions: Rows | None = None  # positions of each context's tokens, by default 0, 1, 2, ...
    first_position: np.ndarray | None = (
        None  # [contexts] first position of the response, by default the next one
    )
    padding_seen: bool = False  # left padding is attended to, and counts in positions
    older: Network | None = None  # network whose keys and values are in the cache
    cached: np.ndarray | None = None  # [contexts] True if they are


@dataclass
class Answers:
    """Sampled responses of one side; token arrays are flat, row after row."""

    prompts: Rows
    group: np.ndarray  # [rows]
    ids: np.ndarray
    lengths: np.ndarray  # [rows]
    mask: np.ndarray  # True = sampled
    turn: np.ndarray  # [response tokens] number of the turn, tool tokens belong to the one before
    kept: Values  # name of KEPT -> [response tokens]; NaN at tool tokens
    finish: list[str]
    reward: np.ndarray

    def rows(self, flat: np.ndarray) -> Rows:
        return np.split(flat, np.cumsum(self.lengths)[:-1])

    @property
    def owner(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


def contexts_of(rows: Sequence[np.ndarray]) -> Contexts:
    """Return the distinct contexts of all rows."""
    numbers: dict[bytes, int] = {}
    of_row = [numbers.setdefault(np.asarray(row, np.int32).tobytes(), len(numbers)) for row in rows]
    first = [of_row.index(number) for number in range(len(numbers))]
    return Contexts([np.asarray(rows[row], np.int32) for row in first], np.array(of_row))


def prefill(network: Network, contexts: Contexts) -> State:
    """Run all contexts, left-padded to one width."""
    width = max(len(ids) for ids in contexts.ids)
    rows = len(contexts.ids)
    ids, real = (
        torch.zeros(rows, width, dtype=torch.long),
        torch.zeros(rows, width, dtype=torch.bool),
    )
    positions = torch.zeros(rows, width, dtype=torch.long)
    for row, tokens in enumerate(contexts.ids):
        start = width - len(tokens)
        ids[row, start:] = torch.from_numpy(tokens.astype(np.int64))
        real[row, start:] = True
        own = np.arange(len(tokens)) if contexts.positions is None else contexts.positions[row]
        positions[row, start:] = torch.from_numpy(np.asarray(own, np.int64))
    if contexts.padding_seen:
        real[:], positions[:] = True, torch.arange(width)
    state = empty_state(rows, width)
    parts = [(network, slice(0, width))]
    if contexts.older is not None:
        parts = [(contexts.older, slice(0, width - 1)), (network, slice(width - 1, width))]
    for part, slots in parts:
        hidden = advance(part, state, ids[:, slots], positions[:, slots], real[:, slots])
    state.last, state.next_position = hidden[:, -1], positions[:, -1] + 1
    if contexts.first_position is not None:
        state.next_position = torch.from_numpy(contexts.first_position.astype(np.int64))
    if contexts.cached is not None and not contexts.cached.all():
        _replace_rows(state, prefill(network, _fresh(contexts)), ~contexts.cached)
    return state


def _fresh(contexts: Contexts) -> Contexts:
    return Contexts(contexts.ids, contexts.of_row, contexts.positions, contexts.first_position)


def _replace_rows(state: State, other: State, rows: np.ndarray) -> None:
    where = torch.from_numpy(rows)
    for mine, others in zip(state.keys + state.values, other.keys + other.values, strict=True):
        mine[where] = others[where]
    state.last[where] = other.last[where]


@torch.inference_mode()
def sample(
    network: Network,
    contexts: Contexts,
    law: Law,
    limits: np.ndarray,
    seed: int,
    *,
    stops: tuple[int, ...] = (END,),
    written_before: Rows | None = None,
) -> tuple[Rows, dict[str, Rows]]:
    """Sample a response of at most `limits` tokens per row, with the KEPT values.

    `written_before` [rows] holds the end of each context that belongs to the response already.
    """
    torch.manual_seed(seed)
    rows, longest = len(contexts.of_row), int(limits.max())
    state = prefill(network, contexts)
    state = state.rows(torch.from_numpy(contexts.of_row), state.filled + longest)
    vocabulary = network.tensors[EMBEDDING].shape[0]
    seen, written = (torch.zeros(rows, vocabulary, dtype=torch.bool) for _ in range(2))
    for row, number in enumerate(contexts.of_row):
        seen[row, contexts.ids[number]] = True
        if written_before is not None:
            written[row, written_before[row]] = True
    ids = np.zeros((rows, longest), np.int32)
    kept = {name: np.full((rows, longest), np.nan) for name in KEPT}
    lengths = np.zeros(rows, np.int64)
    active, ends = torch.arange(rows), torch.from_numpy(limits)
    going = torch.ones(rows, dtype=torch.bool)  # active rows; a few finished ones are computed too
    hidden, stop = state.last, torch.tensor(stops)
    for step in range(longest):
        logits = logits_of(network, hidden)[:, :vocabulary]
        drawn_from = law.processed(logits, seen, written, step)
        token = torch.multinomial(drawn_from.exp(), 1)
        where, now = active[going].numpy(), going.numpy()
        ids[where, step] = token[going, 0]
        for name, value in zip(KEPT, _noted(logits, drawn_from, token), strict=True):
            kept[name][where, step] = value[now]
        lengths[where] = step + 1
        seen.scatter_(1, token, True)
        written.scatter_(1, token, True)
        going = going & ~torch.isin(token[:, 0], stop) & (step + 1 < ends)
        if not going.any():
            break
        if going.float().mean() < 0.8:
            left = going.nonzero()[:, 0]
            active, ends, token, going = active[left], ends[left], token[left], going[left]
            seen, written = seen[left], written[left]
            state = state.rows(left)
        position = state.next_position[:, None]
        real = torch.ones_like(token, dtype=torch.bool)
        hidden = advance(network, state, token, position, real)[:, -1]
        state.next_position = state.next_position + 1
    return (
        [ids[row, :length] for row, length in enumerate(lengths)],
        {name: [v[row, :n] for row, n in enumerate(lengths)] for name, v in kept.items()},
    )


def _noted(logits: Tensor, drawn_from: Tensor, token: Tensor) -> tuple[np.ndarray, ...]:
    raw = logits.log_softmax(-1)
    return (
        raw.gather(1, token)[:, 0].numpy(),
        drawn_from.gather(1, token)[:, 0].numpy(),
        entropy_of(raw).numpy(),
        entropy_of(drawn_from).numpy(),
        drawn_from.amax(-1).numpy(),
    )


def entropy_of(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs.clamp(min=-1e4)).sum(-1)


def answer(
    network: Network,
    rows: Sequence[tuple[int, Question]],
    law: Law,
    seed: int,
    *,
    longest: int,
    contexts: Contexts | None = None,
) -> Answers:
    """Sample one response per row; a row is a group number and a question."""
    prompts = [question.ids for _, question in rows]
    ids, kept = sample(
        network, contexts or contexts_of(prompts), law, np.full(len(rows), longest), seed
    )
    turns = [np.zeros(len(row), np.int64) for row in ids]
    masks = [np.ones(len(row), np.bool_) for row in ids]
    return gathered(rows, ids, masks, turns, kept)


def answer_with_tools(
    network: Network,
    rows: Sequence[tuple[int, Question]],
    law: Law,
    seed: int,
    *,
    longest: int,
    most_turns: int = 6,
) -> Answers:
    """Sample turn by turn; the calculator's masked tokens follow each call."""
    count = len(rows)
    prompts = [question.ids for _, question in rows]
    ids: list[Rows] = [[] for _ in rows]
    masks: list[Rows] = [[] for _ in rows]
    turns: list[Rows] = [[] for _ in rows]
    kept: dict[str, list[Rows]] = {name: [[] for _ in rows] for name in KEPT}
    open_rows = list(range(count))
    for turn in range(most_turns):
        before = [np.concatenate([np.zeros(0, np.int32), *ids[row]]) for row in open_rows]
        contexts = contexts_of(
            [np.concatenate([prompts[row], b]) for row, b in zip(open_rows, before, strict=True)]
        )
        limits = np.array([max(longest - len(b), 1) for b in before])
        new, values = sample(
            network,
            contexts,
            law,
            limits,
            seed + turn,
            stops=(END, CALL_END),
            written_before=before,
        )
        still = []
        for place, row in enumerate(open_rows):
            called = new[place][-1] == CALL_END and turn + 1 < most_turns
            tool = tool_result(new[place]) if called else np.zeros(0, np.int32)
            ids[row] += [new[place], tool]
            masks[row] += [np.ones(len(new[place]), np.bool_), np.zeros(len(tool), np.bool_)]
            turns[row].append(np.full(len(new[place]) + len(tool), turn))
            for name in KEPT:
                kept[name][row] += [values[name][place], np.full(len(tool), np.nan)]
            if called and sum(map(len, ids[row])) < longest:
                still.append(row)
        open_rows = still
        if not open_rows:
            break
    joined = {name: [np.concatenate(v) for v in values] for name, values in kept.items()}
    parts = ([np.concatenate(v) for v in item] for item in (ids, masks, turns))
    return gathered(rows, *parts, joined)


def gathered(
    rows: Sequence[tuple[int, Question]],
    ids: Rows,
    masks: Rows,
    turns: Rows,
    kept: dict[str, Rows],
) -> Answers:
    """Flatten the responses, with the columns of each row."""
    finish = ["stop" if row[-1] == END else "length" for row in ids]
    return Answers(
        [question.ids for _, question in rows],
        np.array([group for group, _ in rows]),
        np.concatenate(ids).astype(np.int32),
        np.array([len(row) for row in ids]),
        np.concatenate(masks),
        np.concatenate(turns),
        {name: np.concatenate(values).astype(np.float64) for name, values in kept.items()},
        finish,
        np.array([reward(i, question.answer) for i, (_, question) in zip(ids, rows, strict=True)]),
    )


def joined(parts: Sequence[tuple[np.ndarray, Answers]]) -> Answers:
    """Merge the rows of several answers; each part has the rows at its indices."""
    order = np.argsort(np.concatenate([places for places, _ in parts]))

    def flat(values: Sequence[np.ndarray]) -> np.ndarray:
        rows = [row for (_, a), v in zip(parts, values, strict=True) for row in a.rows(v)]
        return np.concatenate([rows[place] for place in order])

    def by_row(values: Sequence[Sequence]) -> list:
        rows = [row for item in values for row in item]
        return [rows[place] for place in order]

    answers = [a for _, a in parts]
    return Answers(
        by_row([a.prompts for a in answers]),
        np.array(by_row([a.group for a in answers])),
        flat([a.ids for a in answers]),
        np.array(by_row([a.lengths for a in answers])),
        flat([a.mask for a in answers]),
        flat([a.turn for a in answers]),
        {name: flat([a.kept[name] for a in answers]) for name in KEPT},
        by_row([a.finish for a in answers]),
        np.array(by_row([a.reward for a in answers])),
    )


@dataclass
class Scores:
    """A network's scores of given tokens, flat: log-probs at a temperature, and distributions."""

    log_prob: np.ndarray
    entropy: np.ndarray
    top: np.ndarray  # log-prob of the most likely token
    own: np.ndarray  # log-prob of the token under the logits that follow it
    logits: Tensor | None = field(default=None)  # [tokens, vocabulary]


@torch.inference_mode()
def score(
    network: Network,
    contexts: Contexts,
    responses: Rows,
    seed: int,
    *,
    temperature: float = 1.0,
    targets: Rows | None = None,
    keep_logits: bool = False,
) -> Scores:
    """Score the tokens of all rows; `targets` replace the tokens to score."""
    torch.manual_seed(seed)
    asked = responses if targets is None else targets
    prompts = prefill(network, contexts)
    order = np.argsort([len(row) for row in responses], kind="stable")
    result: dict[int, list[np.ndarray]] = {}
    logits_by_row: dict[int, Tensor] = {}
    for first in range(0, len(order), ROWS_AT_ONCE):
        rows = order[first : first + ROWS_AT_ONCE]
        logits = _logits_after(network, prompts, contexts, responses, rows)
        for place, row in enumerate(rows):
            length = len(responses[row])
            mine = logits[place, : length + 1] / temperature
            token = torch.from_numpy(asked[row].astype(np.int64))[:, None]
            law = _log_softmax(mine, network.options.missing_vocabulary)
            result[row] = [
                law[:-1].gather(1, token)[:, 0].numpy(),
                entropy_of(law[:-1]).numpy(),
                law[:-1].amax(-1).numpy(),
                law[1:].gather(1, token)[:, 0].numpy(),
            ]
            if keep_logits:
                logits_by_row[row] = mine[:-1]
    columns = [
        np.concatenate([result[row][column] for row in range(len(responses))]).astype(np.float64)
        for column in range(4)
    ]
    kept = torch.cat([logits_by_row[row] for row in range(len(responses))]) if keep_logits else None
    return Scores(*columns, logits=kept)


def _logits_after(
    network: Network, prompts: State, contexts: Contexts, responses: Rows, rows: np.ndarray
) -> Tensor:
    """Return logits after the context and each token, [rows, length + 1, vocabulary]."""
    length = max(len(responses[row]) for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    for place, row in enumerate(rows):
        ids[place, : len(responses[row])] = torch.from_numpy(responses[row].astype(np.int64))
    state = prompts.rows(torch.from_numpy(contexts.of_row[rows]), prompts.filled + length)
    positions = state.next_position[:, None] + torch.arange(length)
    hidden = advance(network, state, ids, positions, torch.ones_like(ids, dtype=torch.bool))
    return logits_of(network, torch.cat([state.last[:, None], hidden], 1))


def _log_softmax(logits: Tensor, missing: tuple[int, int] | None) -> Tensor:
    if missing is None:
        return logits.log_softmax(-1)
    rest = logits.clone()
    rest[:, missing[0] : missing[1]] = -torch.inf
    return logits - rest.logsumexp(-1, keepdim=True)
