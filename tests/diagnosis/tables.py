"""Made-up tables with known truth: tokens are drawn from a distribution in closed form.

A Markov chain over 200 tokens stands for a language model: each token has the logits of what
follows it, some peaked and some flat. `sampled` draws the tokens, `recorded` and `trained` give
the log-probs of both sides. Where `recorded` is `sampled`, E[ratio] = 1 whatever the trainer is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Case, RowFacts, joined_cases
from rcdiag.diagnosis.judge import diagnose
from rcdiag.results import Diagnosis

Array = NDArray[np.float64]
VOCABULARY, END = 200, 1


@dataclass(frozen=True)
class State:
    """Inputs of a distribution in addition to the logits."""

    seen: NDArray[np.bool_]  # [rows, vocabulary] tokens that the response already has
    position: int
    context: NDArray[np.int64]  # [rows] token before
    rng: np.random.Generator


# Logits [rows, vocabulary] and the state -> log-probs [rows, vocabulary].
Law = Callable[[Array, State], Array]


def normal(logits: Array) -> Array:
    """Return the log-softmax of the logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def plain(logits: Array, state: State) -> Array:
    """Return the distribution of the unchanged logits."""
    return normal(logits)


def changed(change: Callable[[Array, State], Array], law: Law = plain) -> Law:
    """Make a distribution of changed logits."""
    return lambda logits, state: law(change(logits, state), state)


def tempered(temperature: float) -> Law:
    return changed(lambda logits, state: logits / temperature)


def noisy(size: float, law: Law = plain, degrees: float | None = None) -> Law:
    """Add engine noise to the logits, Gaussian or heavy-tailed (Student's t)."""

    def noise(logits: Array, state: State) -> Array:
        if degrees is None:
            return logits + size * state.rng.standard_normal(logits.shape)
        return logits + size * state.rng.standard_t(degrees, logits.shape).clip(-60, 60)

    return changed(noise, law)


def rerouted(size: float, share: float, law: Law = plain) -> Law:
    """Add large noise at a few tokens, as rerouted experts do, and small noise elsewhere."""

    def noise(logits: Array, state: State) -> Array:
        loud = state.rng.random((len(logits), 1)) < share
        scale = np.where(loud, size, size / 20)
        return logits + scale * state.rng.standard_normal(logits.shape)

    return changed(noise, law)


def drifted(size: float, seed: int = 5) -> Law:
    """Shift the logits as other weights do: a common direction, and a part by context."""
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal(VOCABULARY)
    own = 0.5 * rng.standard_normal((VOCABULARY, VOCABULARY))
    return changed(lambda logits, state: logits + size * (shared + own[state.context]))


def kept(keep: Callable[[Array], NDArray[np.bool_]]) -> Law:
    """Renormalise over the most likely tokens; `keep` gets the sorted probabilities."""

    def law(logits: Array, state: State) -> Array:
        probability = np.exp(normal(logits))
        ordered = -np.sort(-probability, axis=1)
        least = np.where(keep(ordered), ordered, np.inf).min(axis=1, keepdims=True)
        return normal(np.where(probability >= least, logits, -1e9))

    return law


def top_p(share: float) -> Law:
    return kept(lambda p: np.cumsum(p, axis=1) - p < share)


def top_k(count: int) -> Law:
    return kept(lambda p: np.broadcast_to(np.arange(p.shape[1]) < count, p.shape))


def min_p(share: float) -> Law:
    return kept(lambda p: p >= share * p[:, :1])


def banned(ids: Sequence[int], up_to: int = 10**9) -> Law:
    """Ban token ids, up to a position."""

    def ban(logits: Array, state: State) -> Array:
        logits = logits.copy()
        if state.position < up_to:
            logits[:, list(ids)] = -1e9
        return logits

    return changed(ban)


def presence_penalty(size: float) -> Law:
    return changed(lambda logits, state: logits - size * state.seen)


def repetition_penalty(factor: float) -> Law:
    def penalise(logits: Array, state: State) -> Array:
        lower = np.where(logits > 0, logits / factor, logits * factor)
        return np.where(state.seen, lower, logits)

    return changed(penalise)


def without_shard(first: int, last: int) -> Law:
    """Leave part of the vocabulary out of the softmax's sum."""

    def law(logits: Array, state: State) -> Array:
        part = np.delete(logits, np.arange(first, last), axis=1)
        top = logits.max(axis=1, keepdims=True)
        return logits - top - np.log(np.exp(part - top).sum(axis=1, keepdims=True))

    return law


def capped(cap: float) -> Law:
    """Cap logits smoothly: cap * tanh(logits / cap)."""
    return changed(lambda logits, state: cap * np.tanh(logits / cap))


def divided(temperature: float) -> Law:
    """Divide log-probs instead of logits by the temperature."""
    return lambda logits, state: normal(logits) / temperature


def first_tokens_differ(size: float, fades: float = 4.0) -> Law:
    """Shift logits, most at the beginning of responses, as another prompt does."""

    def move(logits: Array, state: State) -> Array:
        noise = state.rng.standard_normal(logits.shape)
        return logits + size * np.exp(-state.position / fades) * noise

    return changed(move, noisy(0.01))


def chain(seed: int) -> Array:
    """Return the logits of the token after each token, [vocabulary, vocabulary]."""
    rng = np.random.default_rng([seed, 1])
    sharp = rng.uniform(1.5, 4.0, (VOCABULARY, 1))
    logits = sharp * rng.standard_normal((VOCABULARY, VOCABULARY))
    # Most contexts are nearly certain of the next token, as in a language model.
    sure = rng.random(VOCABULARY) < 0.7
    due = rng.integers(2, VOCABULARY, VOCABULARY)
    logits[sure, due[sure]] += rng.uniform(8.0, 18.0, int(sure.sum()))
    # Logits of a model have an arbitrary mean.
    logits[:, END] = np.where(sure, -9.0, 6.0) + 0.3 * rng.standard_normal(VOCABULARY)
    return logits


def made(
    sampled: Law = plain,
    trained: Law | None = None,
    recorded: Law | None = None,
    *,
    rows: int = 128,
    length: int = 60,
    seed: int = 0,
    ends: bool = False,
    noise: float = 0.01,
    group_of: int = 4,
    prompts: bool = False,
    entropies: Sequence[str] = (),
    sharpness: float = 1.0,
    **facts: Any,
) -> Case:
    """Draw a table. Responses end at the end token with `ends`; else all have one length.

    With `prompts` the rows of a group begin in one context, and the same tokens have one law.

    `trained` and `recorded` are `sampled` unless given; the trainer has `noise` on its logits.
    Facts are those of rows: `step`, `engine`, `temperature`, `top_p`, ...
    """
    rng = np.random.default_rng([seed, 2])
    recorded = recorded or sampled
    trained = trained or noisy(noise, sampled)
    logits = sharpness * chain(seed)
    context = rng.integers(2, VOCABULARY, rows)
    seen = np.zeros((rows, VOCABULARY), np.bool_)
    every = np.arange(rows)
    group = (every // group_of).astype(np.uint64)
    if prompts:
        context = context[every // group_of * group_of]
        facts = {"prompt": group, **facts}
    ids: list[NDArray[np.int64]] = []
    log_probs: dict[str, list[Array]] = {"rollout": [], "old": []}
    entropy: dict[str, list[Array]] = {name: [] for name in entropies}
    for position in range(length):
        state = State(seen, position, context, rng)
        # Earlier tokens shift the logits too, so that no distribution occurs twice.
        here = logits[context]
        if not prompts:
            here = here + 0.5 * rng.standard_normal((rows, VOCABULARY))
        # Gumbel noise; `rng.gumbel` draws the same numbers in five times the time.
        gumbel = -np.log(-np.log(1.0 - rng.random(here.shape)))
        token = (gumbel + sampled(here, state)).argmax(axis=1)
        laws = {"rollout": recorded(here, state), "old": trained(here, state)}
        ids.append(token)
        for name, law in laws.items():
            log_probs[name].append(law[every, token])
        for name in entropies:
            law = laws[name]
            entropy[name].append(-(np.exp(law) * np.maximum(law, -1e3)).sum(axis=1))
        seen[every, token] = True
        context = token
    tokens = np.stack(ids, axis=1)
    lengths = _lengths(tokens, ends)
    inside = np.arange(length) < lengths[:, None]
    return Case(
        sampler="rollout",
        trainer="old",
        row=np.arange(rows),
        lengths=lengths,
        token_id=tokens[inside].astype(np.int32),
        mask=np.ones(int(inside.sum()), np.bool_),
        log_probs={name: single(np.stack(x, axis=1)[inside]) for name, x in log_probs.items()},
        entropy={name: single(np.stack(x, axis=1)[inside]) for name, x in entropy.items()},
        facts=RowFacts(group=group, **facts),
        source="table.parquet",
    )


def _lengths(ids: NDArray[np.int64], ends: bool) -> NDArray[np.int64]:
    """Return the number of tokens of each row up to its first end token."""
    rows, length = ids.shape
    if not ends:
        return np.full(rows, length)
    is_end = ids == END
    return np.where(is_end.any(axis=1), is_end.argmax(axis=1) + 1, length)


def single(values: Array) -> Array:
    """Round to float32, as tables store log-probs."""
    return values.astype(np.float32).astype(np.float64)


def with_values(case: Case, policy: str, change: Callable[[Array], Array]) -> Case:
    """Change the stored values of one policy."""
    return case.with_log_probs(policy, single(change(case.log_probs[policy].copy())))


def bfloat16(values: Array) -> Array:
    """Round to bfloat16: to nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def with_tool_turns(case: Case, filler: float, first: int = 20, size: int = 8) -> Case:
    """Mask a span of every row as tool text, with log-probs `filler` on both sides."""
    tool = (case.position >= first) & (case.position < first + size)
    columns = {name: np.where(tool, filler, values) for name, values in case.log_probs.items()}
    return replace(case, log_probs=columns, mask=case.mask & ~tool)


def shifted(case: Case, policy: str, rows: NDArray[np.bool_], after: int = 0) -> Case:
    """Shift one column of some rows by one token, from a position on."""
    values = case.log_probs[policy].copy()
    for row in np.flatnonzero(rows):
        tokens = slice(case.start[row] + after, case.start[row] + case.lengths[row])
        values[tokens] = np.roll(values[tokens], 1)
    return case.with_log_probs(policy, values)


def swapped(case: Case, policy: str, pairs: int) -> Case:
    """Exchange one column of neighbouring rows of equal length."""
    values = case.log_probs[policy].copy()
    for row in range(0, 2 * pairs, 2):
        one = slice(case.start[row], case.start[row] + case.lengths[row])
        two = slice(case.start[row + 1], case.start[row + 1] + case.lengths[row + 1])
        values[one], values[two] = values[two].copy(), values[one].copy()
    return case.with_log_probs(policy, values)


def taken_twice(case: Case, copies: int) -> Case:
    """Append copies of the first rows."""
    first = case.take(case.row < copies)
    return joined_cases([case, replace(first, row=first.row + len(case.row))])


def counted(case: Case) -> Case:
    """Count NaN values, as reading a table does."""
    found = {policy: case.not_numbers_of(policy) for policy in case.log_probs}
    return replace(case, not_numbers={policy: kinds for policy, kinds in found.items() if kinds})


def judged(case: Case) -> Diagnosis:
    return diagnose(counted(case))


def named(case: Case) -> list[str]:
    """Return the causes of a case, the deciding one first."""
    return [cause.slug for cause in judged(case).causes]


def write(case: Case, path: Path, **columns: object) -> Path:
    """Write a case as a trajectory table, with further columns; return the path."""
    offsets = np.append(case.start, len(case.mask)).astype(np.int32)

    def lists(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, kind))

    made_of: dict[str, Any] = {
        "response_ids": lists(case.token_id, pa.int32()),
        "response_mask": lists(case.mask.astype(np.uint8), pa.uint8()),
    }
    for policy, values in case.log_probs.items():
        made_of[f"{policy}_log_probs"] = lists(values.astype(np.float32), pa.float32())
    for policy, values in case.entropy.items():
        made_of[f"{policy}_entropy"] = lists(values.astype(np.float32), pa.float32())
    facts = case.facts
    if facts.group is not None:
        made_of["group_id"] = pa.array(facts.group.astype(np.int64))
    for name in ("step", "engine", "temperature", "top_p", "top_k", "min_p", "policy_version"):
        values = getattr(facts, name)
        if values is not None:
            made_of[name] = pa.array(list(values))
    table = pa.table({**made_of, **columns})
    if case.metadata:
        import json

        table = table.replace_schema_metadata({"rcdiag": json.dumps(dict(case.metadata))})
    pq.write_table(table, path)
    return path
