"""Experiments on a side's context: other special tokens, a truncated prompt, dropped turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.diagnosis.case import spread_over
from rcdiag.diagnosis.experiments.hypothesis_tester import (
    HypothesisTest,
    HypothesisTester,
    experiment,
)
from rcdiag.diagnosis.experiments.thresholds import (
    CONFIRM_ROWS,
    EARLY,
    GAIN,
    LATE,
    LEAST_GAIN,
    OUTLYING,
    SLIGHT_GAIN,
)
from rcdiag.engines.changes import Passage

Ids = NDArray[np.int32]
Turn = tuple[int, int, bool]  # first token, the one after the last, whether it was sampled

LONGEST_SCAN = 200  # prompt tokens up to which every truncation is tried
COARSE_SCAN = 24  # number of truncations that are tried of longer prompts
SCANNED_TOKENS = 48  # first tokens of a response, on which truncations are compared
MOST_SPECIAL = 12  # with more special tokens in responses, pairs are not tried


def with_prompt(tester: HypothesisTester, row: int, prompt: Ids) -> Passage | None:
    """Return the passage of a row's response after another prompt; None for an empty prompt."""
    if not len(prompt):
        return None
    ids = np.concatenate([prompt, tester.sample.response(row)]).astype(np.int32)
    places = np.arange(len(prompt), len(ids))
    return Passage(ids, places, row, None, len(prompt), tester.temperature_of(row))


def _context_worth(tester: HypothesisTester) -> float:
    """Return 1, or up to 7 where the first tokens have a larger loss than later ones."""
    position, loss = tester.sample.position[tester.side.known_at], tester.side.residual.loss
    early, late = loss[position < EARLY], loss[position >= LATE]
    if min(len(early), len(late)) < EARLY:
        return 1.0
    return 1.0 + 3.0 * max(min(float(early.mean() - late.mean()), 2.0), 0.0)


@experiment(
    slugs=("bos-differs", "prompt-template"),
    passes=lambda tester: 4.0 + 2.0 * len(tester.forward.tensors.special_ids),
    worth=_context_worth,
)
def prompts(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try prompts with a special token added or removed, and with text added at the end."""
    seen = {int(token) for row in tester.screen for token in tester.sample.prompt(int(row))}
    edits: list[tuple[str, str, Callable[[Ids], Ids]]] = [
        ("bos-differs", "prompt without its first token", lambda ids: ids[1:]),
        ("bos-differs", "prompt with its first token twice", lambda ids: np.append(ids[:1], ids)),
        ("prompt-template", "prompt without its last token", lambda ids: ids[:-1]),
        (
            "prompt-template",
            "prompt with its last token twice",
            lambda ids: np.append(ids, ids[-1]),
        ),
    ]
    for token in tester.forward.tensors.special_ids:
        edits.append(("bos-differs", f"token {token} before the prompt", partial(np.append, token)))
        if token in seen:
            words = f"prompt without its tokens {token}"
            edits.append(("prompt-template", words, partial(_without, token)))
    for text in (" ", "\n", "\n\n", "  "):
        if tester.encode is not None and (added := tester.encode(text)):
            words = f"{text!r} after the prompt"
            edits.append(("prompt-template", words, partial(np.append, values=added)))

    def edited(edit: Callable[[Ids], Ids], row: int) -> Passage | None:
        return with_prompt(tester, row, edit(tester.sample.prompt(row)))

    best = tester.best_of(
        (tester.test_pass(slug, words, edit=partial(edited, edit)) for slug, words, edit in edits),
        enough=lambda test: test.is_significant and test.residual.within(tester.sample.noise),
    )
    if best is not None:
        yield (
            tester.repeated(best, tester.confirm) if best.is_significant else tester.confirmed(best)
        )


def _without(token: int, ids: Ids) -> Ids:
    """Remove a token from a prompt wherever it occurs."""
    values: Ids = ids[ids != token]
    return values


@experiment(
    slugs=("prompt-truncated",),
    passes=lambda tester: 16.0,
    worth=_context_worth,
)
def truncations(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try prompts cut to their last or first tokens."""

    def cut(keeps: str, size: int, row: int) -> Passage | None:
        prompt = tester.sample.prompt(row)
        return with_prompt(tester, row, prompt[-size:] if keeps == "last" else prompt[:size])

    # All truncations are tried on the first tokens of the row whose prompt has the median length.
    lengths = {int(row): len(tester.sample.prompt(int(row))) for row in tester.screen}
    row = sorted(lengths, key=lambda row: lengths[row])[len(lengths) // 2]
    longest = lengths[row]
    if longest < 2:
        return
    # Rows that the unchanged model explains were not truncated: their prompts are within the limit.
    good = tester.row_loss < np.median(tester.row_loss) - np.log(OUTLYING)
    fits = [len(tester.sample.prompt(int(one))) for one in tester.sample.rows[good]]
    least = max((size for size in fits if size < longest), default=0) if len(fits) > 2 else 0
    sizes = np.arange(max(1, min(least, longest - EARLY)), longest)
    if len(sizes) > LONGEST_SCAN:
        sizes = sizes[spread_over(len(sizes), COARSE_SCAN)]
    found: list[tuple[float, str, int]] = []
    for keeps in ("last", "first"):
        passages = []
        for size in sizes.tolist():
            made = cut(keeps, size, row)
            assert made is not None
            few = made.places[:SCANNED_TOKENS]
            passages.append(replace(made, ids=made.ids[: few[-1] + 1], places=few, prefix=0))
        values = tester.forward.log_probs(passages).reshape(len(sizes), -1)
        at = tester.sample.tokens_of([row])[: values.shape[1]]
        known = tester.side.known[at]
        found += [
            (tester.residual_of(value[known], at[known]).nats, keeps, size)
            for value, size in zip(values, sizes.tolist(), strict=True)
        ]
    for _, keeps, size in sorted(found)[:2]:
        test = tester.test_pass(
            "prompt-truncated",
            f"only the {keeps} {size} tokens of the prompt",
            edit=partial(cut, keeps, size),
            values={"tokens": float(size)},
            rows=tester.confirm,
        )
        if test is not None:
            yield test


def turns(tester: HypothesisTester, row: int) -> list[Turn]:
    """Return the runs of sampled and of not sampled tokens in a response."""
    case = tester.sample.case
    mask = case.mask[case.start[row] : case.start[row] + case.lengths[row]]
    edges = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(mask)]
    return [(start, stop, bool(mask[start])) for start, stop in pairwise(edges)]


def has_turns(tester: HypothesisTester) -> bool:
    """Tell whether rows have tokens that the policy did not sample."""
    return any(len(turns(tester, int(row))) > 2 for row in tester.sample.rows)


# What is dropped -> which of the turns before turn `now` remain in its context.
KEPT_TURNS: dict[str, Callable[[Sequence[Turn], int], list[bool]]] = {
    "earlier turns": lambda runs, now: [False] * now,
    "earlier turns but the last tool output": lambda runs, now: [
        i == now - 1 and not runs[i][2] for i in range(now)
    ],
    "tool outputs before the last one": lambda runs, now: [
        runs[i][2] or i == now - 1 for i in range(now)
    ],
    "all tool outputs": lambda runs, now: [runs[i][2] for i in range(now)],
    "the policy's own earlier turns": lambda runs, now: [not runs[i][2] for i in range(now)],
    "all but the last turn and its tool output": lambda runs, now: [
        i >= now - 2 for i in range(now)
    ],
}


@experiment(
    slugs=("context-stripped",),
    passes=lambda tester: 6.0,
    worth=lambda tester: 8.0 if has_turns(tester) else 0.0,
)
def stripped(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try contexts of later turns from which earlier turns or tool outputs are dropped."""
    rows = [int(row) for row in tester.sample.rows if len(turns(tester, int(row))) > 2]
    order = np.argsort(-tester.row_loss[np.searchsorted(tester.sample.rows, rows)])
    for words, keeps in KEPT_TURNS.items():
        passages, at = [], []
        for row in (rows[index] for index in order[:CONFIRM_ROWS]):
            runs = turns(tester, row)
            prompt, response = tester.sample.prompt(row), tester.sample.response(row)
            tokens = tester.sample.tokens_of([row])
            for now, (start, stop, sampled) in enumerate(runs):
                if not sampled or now < 2:
                    continue
                kept = zip(runs, keeps(runs, now), strict=False)
                before = [response[first:end] for (first, end, _), keep in kept if keep]
                ids = np.concatenate([prompt, *before, response[start:stop]]).astype(np.int32)
                places = np.arange(len(ids) - (stop - start), len(ids))
                passages.append(Passage(ids, places, row, None, 0, tester.temperature_of(row)))
                at.append(tokens[start:stop])
        if not passages:
            return
        yield tester.test(
            "context-stripped",
            f"{words} dropped from the context",
            tester.forward.log_probs(passages),
            np.concatenate(at),
        )
        if tester.out_of_time:
            return


@experiment(
    slugs=("special-token-ids",),
    passes=lambda tester: 16.0,
    worth=lambda tester: 6.0 if has_turns(tester) else 0.7,
)
def exchanged_ids(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try to exchange the ids of two special tokens, both in the context and as scored tokens.

    The pair that explains most is exchanged first, and further pairs as long as they explain more.
    """
    response = np.unique(tester.sample.token)
    ids = [token for token in tester.forward.tensors.special_ids if token in response]
    if len(ids) > MOST_SPECIAL or not tester.far_off.any():
        return
    pairs = [(one, other) for i, one in enumerate(ids) for other in ids[i + 1 :]]
    exchanged: list[tuple[int, int]] = []
    best: HypothesisTest | None = None
    while pairs and not tester.out_of_time:
        made = [(_exchanged(tester, [*exchanged, pair]), pair) for pair in pairs]
        tests = [(test, pair) for test, pair in made if test is not None]
        if not tests:
            break
        found, pair = min(tests, key=lambda one: one[0].residual.nats)
        if best is not None and found.residual.nats > best.residual.nats - LEAST_GAIN:
            break
        best = found
        exchanged.append(pair)
        if best.gain < GAIN or best.residual.within(tester.sample.noise):
            break
        pairs = [one for one in pairs if not set(one) & set(pair)]
    if best is not None:
        yield tester.confirmed(best, SLIGHT_GAIN)


def _exchanged(tester: HypothesisTester, pairs: Sequence[tuple[int, int]]) -> HypothesisTest | None:
    """Test the rows with the two ids of each pair exchanged."""
    other: Ids = np.arange(tester.forward.tensors.vocabulary, dtype=np.int32)
    for one, second in pairs:
        other[one], other[second] = second, one

    def edit(row: int) -> Passage:
        passage = tester.passage(row)
        return replace(passage, ids=other[passage.ids])

    words = ", ".join(f"{one} and {second}" for one, second in pairs)
    return tester.test_pass("special-token-ids", f"token ids {words} exchanged", edit=edit)
