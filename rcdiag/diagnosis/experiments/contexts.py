"""Experiments on the context of a side: prompts, positions, padding, packing, dropped turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.diagnosis.experiments.fit import Residual
from rcdiag.diagnosis.experiments.hypothesis_tester import (
    GAIN,
    Counts,
    Experiment,
    HypothesisTest,
    HypothesisTester,
)
from rcdiag.engines.changes import Passage

Ids = NDArray[np.int32]
Edit = Callable[[Ids], Ids]
BLOCKS = (16, 8, 32, 4, 64)  # rows that are padded or packed together
LONGEST_SCAN = 200  # prompt tokens up to which every truncation is tried
COARSE = 24  # truncations that are tried of longer prompts
FIRST_TOKENS = 48  # of a response, on which truncations are tried
MOST_PACKED = 6  # rows before one in a pack


def with_prompt(tester: HypothesisTester, row: int, prompt: Ids) -> Passage | None:
    """Return a row's passage after another prompt."""
    if not len(prompt):
        return None
    response = tester.sample.response(row)
    ids = np.concatenate([prompt, response]).astype(np.int32)
    places = np.arange(len(prompt), len(ids))
    return Passage(ids, places, row, None, len(prompt), tester.temperature_of(row))


def first_tokens_excess(tester: HypothesisTester) -> float:
    """Return mean baseline loss of the first 8 tokens minus that of tokens from the 24th on."""
    at = tester.side.known_at
    position = tester.sample.position[at]
    early = tester.side.residual.loss[position < 8]
    late = tester.side.residual.loss[position >= 24]
    if len(early) < 8 or len(late) < 8:
        return 0.0
    return float(early.mean() - late.mean())


def _after(added: Sequence[int], ids: Ids) -> Ids:
    """Put tokens before a prompt."""
    return np.concatenate([np.asarray(added, np.int32), ids])


def _before(added: Sequence[int], ids: Ids) -> Ids:
    """Put tokens after a prompt."""
    return np.concatenate([ids, np.asarray(added, np.int32)])


def _without(token: int, ids: Ids) -> Ids:
    """Take a token out of a prompt, wherever it stands."""
    values: Ids = ids[ids != token]
    return values


def run_prompts(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try prompts with one special token more or less, and with text added at the end."""
    specials = tester.forward.tensors.special_ids
    prompts = [tester.sample.prompt(int(row)) for row in tester.screen]
    seen = {int(token) for prompt in prompts for token in prompt}
    edits: list[tuple[str, str, Edit]] = [
        ("bos-differs", "prompt without its first token", lambda ids: ids[1:]),
        ("bos-differs", "prompt with its first token twice", lambda ids: np.append(ids[:1], ids)),
        ("prompt-template", "prompt without its last token", lambda ids: ids[:-1]),
        (
            "prompt-template",
            "prompt with its last token twice",
            lambda ids: np.append(ids, ids[-1]),
        ),
    ]
    for token in specials:
        edits.append(("bos-differs", f"token {token} before the prompt", partial(_after, [token])))
        if token in seen:
            words = f"prompt without its tokens {token}"
            edits.append(("prompt-template", words, partial(_without, token)))
    for text in (" ", "\n", "\n\n", "  "):
        if tester.encode is not None and (added := tester.encode(text)):
            edits.append(("prompt-template", f"{text!r} after the prompt", partial(_before, added)))
    best: HypothesisTest | None = None
    for slug, words, edit in edits:

        def edited(row: int, edit: Edit = edit) -> Passage | None:
            return with_prompt(tester, row, edit(tester.sample.prompt(row)))

        test = tester.test_pass("prompts", slug, words, tester.screen, edit=edited)
        if test is not None and (best is None or test.residual.nats < best.residual.nats):
            best, chosen = test, edited
        if tester.out_of_time:
            break
        if best is not None and best.is_significant and best.residual.within(tester.sample.noise):
            break
    if best is not None and (best.gain > GAIN or best.is_significant):
        confirmed = tester.test_pass(
            "prompts",
            best.slug,
            best.setting,
            tester.confirm,
            edit=chosen,
        )
        best = confirmed or best
    if best is not None:
        yield best


def run_truncations(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try prompts of which only the last or the first tokens were seen, and no prompt at all."""
    lengths = {int(row): len(tester.sample.prompt(int(row))) for row in tester.screen}
    rows = sorted(lengths, key=lambda row: lengths[row])
    row = rows[len(rows) // 2]
    longest = lengths[row]
    if longest < 3:
        return
    # Rows explained by the unchanged model were not truncated: their prompts are short enough.
    good = tester.row_loss < np.median(tester.row_loss) - 3.0
    fits = [len(tester.sample.prompt(int(one))) for one in tester.sample.rows[good]]
    least = max((size for size in fits if size < longest), default=0) if len(fits) > 2 else 0
    sizes = np.arange(max(1, min(least, longest - 8)), longest)
    if len(sizes) > LONGEST_SCAN:
        sizes = np.unique(np.linspace(sizes[0], longest - 1, COARSE).astype(np.int64))
    found: list[tuple[float, str, int]] = []
    for keeps in ("last", "first"):
        passages = []
        for size in sizes:
            prompt = tester.sample.prompt(row)
            cut = prompt[-size:] if keeps == "last" else prompt[:size]
            made = with_prompt(tester, row, cut)
            assert made is not None
            few = made.places[:FIRST_TOKENS]
            passages.append(Passage(made.ids[: few[-1] + 1], few, row, None, 0, made.temperature))
        values = tester.forward.log_probs(passages).reshape(len(sizes), -1)
        at = tester.sample.tokens_of([row])[: values.shape[1]]
        known = tester.side.known[at]
        found += [
            (tester.residual_of(value[known], at[known]).nats, keeps, int(size))
            for value, size in zip(values, sizes.tolist(), strict=True)
        ]
    found.sort()
    for _, keeps, kept in found[:2]:

        def edit(row: int, keeps: str = keeps, size: int = kept) -> Passage | None:
            prompt = tester.sample.prompt(row)
            return with_prompt(tester, row, prompt[-size:] if keeps == "last" else prompt[:size])

        test = tester.test_pass(
            "truncations",
            "prompt-truncated",
            f"only the {keeps} {kept} tokens of the prompt",
            tester.confirm,
            edit=edit,
            values={"tokens": float(kept)},
        )
        if test is not None:
            yield test


def run_positions(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try positions that begin anew at the response, or leave a gap as wide as the padding."""

    def placed(row: int, start: int) -> Passage:
        passage = tester.passage(row)
        prompt = passage.prefix
        response = len(passage.ids) - prompt
        positions = np.concatenate([np.arange(prompt), start + np.arange(response)])
        return Passage(passage.ids, passage.places, row, positions, prompt, passage.temperature)

    yield from _followed(
        tester, "positions", "position-ids", "positions of the response from 0",
        lambda row: placed(row, 0),
    )  # fmt: skip
    for gap, words in ((1, "one later than they are"), (-1, "one earlier than they are")):
        yield from _followed(
            tester,
            "positions",
            "position-ids",
            f"positions of the response {words}",
            partial(_after_a_gap, tester, placed, gap),
        )
    for block, width in _widths(tester):
        words = "the table" if block is None else f"blocks of {block} rows"
        yield from _followed(
            tester,
            "positions",
            "position-ids",
            f"positions of the response from the padded prompt width of {words}",
            partial(_at_width, placed, width),
        )


def _after_a_gap(
    tester: HypothesisTester, placed: Callable[[int, int], Passage], gap: int, row: int
) -> Passage:
    """Place a row's response some positions after its prompt."""
    return placed(row, len(tester.sample.prompt(row)) + gap)


def _at_width(placed: Callable[[int, int], Passage], width: Mapping[int, int], row: int) -> Passage:
    """Place a row's response at the padded width of its prompt."""
    return placed(row, width[row])


def run_padding(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try prompts, or whole rows, padded on the left whose padding is attended to.

    Positions count from the padding on, or from the prompt on, as generation with a mask sets them.
    """
    for block, width in _widths(tester):
        words = "the table" if block is None else f"blocks of {block} rows"
        for pads_at in (0, None, 1):
            how = "" if pads_at is None else f", at position {pads_at}"
            yield from _followed(
                tester,
                "padding",
                "attention-to-padding",
                f"padding attended to{how}, up to the longest prompt of {words}",
                partial(_padded, tester, width, pads_at),
            )
    for block, width in _widths(tester, whole=True):
        words = "the table" if block is None else f"blocks of {block} rows"
        yield from _followed(
            tester,
            "padding",
            "attention-to-padding",
            f"padding attended to, up to the longest prompt and response of {words}",
            partial(_padded, tester, width, None),
        )


def _padded(
    tester: HypothesisTester, width: Mapping[int, int], pads_at: int | None, row: int
) -> Passage | None:
    """Return a row whose prompt is padded on the left, with the padding's position."""
    prompt = tester.sample.prompt(row)
    missing = width[row] - len(prompt)
    padding = np.full(missing, tester.forward.tensors.pad_id, np.int32)
    passage = with_prompt(tester, row, np.concatenate([padding, prompt]))
    if passage is None or pads_at is None:
        return passage
    counted = np.arange(len(passage.ids) - missing)
    return replace(passage, positions=np.concatenate([np.full(missing, pads_at), counted]))


def _widths(
    tester: HypothesisTester, *, whole: bool = False
) -> Iterator[tuple[int | None, dict[int, int]]]:
    """Yield for the table and for blocks of rows the padded width of every row's prompt.

    It is the length of the longest prompt, or with `whole` what fills the row with its response up
    to the longest of these.
    """
    case = tester.sample.case
    assert case.prompt_ids is not None
    behind = case.lengths if whole else np.zeros_like(case.lengths)
    lengths = case.prompt_ids.lengths + behind
    yield None, {row: int(lengths.max() - behind[row]) for row in range(len(lengths))}
    for block in BLOCKS:
        if len(lengths) <= block:
            continue
        most = [
            int(lengths[start : start + block].max()) for start in range(0, len(lengths), block)
        ]
        yield block, {row: int(most[row // block] - behind[row]) for row in range(len(lengths))}


def run_packing(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try rows that see the rows before them in a pack, whose positions go on or begin anew."""
    for anew in (False, True):
        test = _test_packed(tester, tester.screen, anew)
        if test is not None and test.gain > GAIN:
            test = _test_packed(tester, tester.confirm[::2], anew) or test
        if test is not None:
            yield test
            if test.residual.within(tester.sample.noise):
                return


def _test_packed(tester: HypothesisTester, rows: Counts, anew: bool) -> HypothesisTest | None:
    """Test packing with the number of preceding rows, 0 to MOST_PACKED, that fits each row best."""
    spans = {int(row): tester.sample.tokens_of([int(row)]) for row in rows}
    columns = {row: tester.side.expected[span] for row, span in spans.items()}
    residual = {row: _residual_in(tester, columns[row], span) for row, span in spans.items()}
    before_of = dict.fromkeys(spans, 0)
    for before in range(1, MOST_PACKED + 1):
        open_rows = [row for row in spans if not residual[row].within(tester.sample.noise)]
        better = False
        for row, column in _packed_columns(tester, open_rows, before, anew).items():
            found = _residual_in(tester, column, spans[row])
            if found.nats < residual[row].nats - GAIN:
                residual[row], columns[row], before_of[row] = found, column, before
                better = True
        if tester.out_of_time or (before > 1 and not better):
            break
    if not any(before_of.values()):
        return None
    words = "begin anew in each" if anew else "go on"
    return tester.test(
        "packing",
        "packing-leak",
        f"rows see the rows packed before them; positions {words}",
        np.concatenate(list(columns.values())),
        np.concatenate(list(spans.values())),
        values={"rows_before": float(np.median(list(before_of.values())))},
    )


def _residual_in(tester: HypothesisTester, column: NDArray[np.float64], span: Counts) -> Residual:
    """Fit the residual of a prediction on one row."""
    known = tester.side.known[span]
    return tester.residual_of(column[known], span[known])


def _packed_columns(
    tester: HypothesisTester, rows: Sequence[int], before: int, anew: bool
) -> dict[int, NDArray[np.float64]]:
    """Return the log-probs of rows after `before` other rows of their pack, by row."""
    passages = [_packed(tester, row, before, anew) for row in rows if row >= before]
    passages = [one for one in passages if tester.fits(one)]
    if not passages:
        return {}
    ends = np.cumsum([len(one.places) for one in passages])[:-1]
    columns = np.split(tester.forward.log_probs(passages), ends)
    return {one.row: column for one, column in zip(passages, columns, strict=True)}


def _packed(tester: HypothesisTester, row: int, before: int, anew: bool) -> Passage:
    """Return a row after the `before` preceding rows of its pack."""
    parts = [
        np.concatenate([tester.sample.prompt(one), tester.sample.response(one)])
        for one in range(row - before, row + 1)
    ]
    ids = np.concatenate(parts).astype(np.int32)
    places = np.arange(len(ids) - tester.sample.case.lengths[row], len(ids))
    positions = np.concatenate([np.arange(len(part)) for part in parts]) if anew else None
    return Passage(ids, places, row, positions, 0, tester.temperature_of(row))


def turns(tester: HypothesisTester, row: int) -> list[tuple[int, int, bool]]:
    """Return the runs of a response: first token, the one after the last, whether sampled."""
    case = tester.sample.case
    mask = case.mask[case.start[row] : case.start[row] + case.lengths[row]]
    borders = np.flatnonzero(np.diff(mask.astype(np.int8))) + 1
    edges = [0, *borders.tolist(), len(mask)]
    return [(edges[i], edges[i + 1], bool(mask[edges[i]])) for i in range(len(edges) - 1)]


def has_turns(tester: HypothesisTester) -> bool:
    """Tell whether rows have tokens that the policy did not sample."""
    return any(len(turns(tester, int(row))) > 2 for row in tester.sample.rows)


def run_stripped(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try contexts of later turns from which earlier turns or tool outputs are dropped."""
    kinds: dict[str, Callable[[list[tuple[int, int, bool]], int], list[bool]]] = {
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
    rows = [int(row) for row in tester.sample.rows if len(turns(tester, int(row))) > 2]
    order = np.argsort(-tester.row_loss[np.searchsorted(tester.sample.rows, rows)])
    rows = [rows[index] for index in order[:24]]
    for words, keeps in kinds.items():
        passages, at = [], []
        for row in rows:
            runs = turns(tester, row)
            prompt, response = tester.sample.prompt(row), tester.sample.response(row)
            tokens = tester.sample.tokens_of([row])
            for now, (start, stop, sampled) in enumerate(runs):
                if not sampled or now < 2:
                    continue
                kept = [
                    response[runs[i][0] : runs[i][1]]
                    for i, keep in enumerate(keeps(runs, now))
                    if keep
                ]
                ids = np.concatenate([prompt, *kept, response[start:stop]]).astype(np.int32)
                places = np.arange(len(ids) - (stop - start), len(ids))
                passages.append(Passage(ids, places, row, None, 0, tester.temperature_of(row)))
                at.append(tokens[start:stop])
        if not passages:
            return
        yield tester.test(
            "stripped",
            "context-stripped",
            f"{words} dropped from the context",
            tester.forward.log_probs(passages),
            np.concatenate(at),
        )
        if tester.out_of_time:
            return


def run_exchanged(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try special tokens in each other's place, in what is read and in what is scored."""
    response = np.unique(tester.sample.token)
    ids = [token for token in tester.forward.tensors.special_ids if token in response]
    pairs = [(one, other) for i, one in enumerate(ids) for other in ids[i + 1 :]]
    residual = np.abs(tester.side.recorded - tester.side.expected)
    off = tester.side.known & (
        residual > 20.0 * tester.sample.noise * tester.side.sensitivity + 0.02
    )
    rows = tester.screen
    if len(ids) > 12 or not off.any():
        return
    exchanged: list[tuple[int, int]] = []
    best: HypothesisTest | None = None
    while pairs and not tester.out_of_time:
        tests: list[tuple[HypothesisTest, tuple[int, int]]] = []
        for pair in pairs:
            test = _exchange(tester, [*exchanged, pair], rows)
            if test is not None:
                tests.append((test, pair))
        if not tests:
            break
        found, pair = min(tests, key=lambda one: one[0].residual.nats)
        if best is not None and found.residual.nats > best.residual.nats - 0.02:
            break
        best = found
        exchanged.append(pair)
        if best.gain < GAIN or best.residual.within(tester.sample.noise):
            break
        pairs = [one for one in pairs if not set(one) & set(pair)]
    if best is not None:
        if best.gain > 0.05:
            best = _exchange(tester, exchanged, tester.confirm) or best
        yield best


def _exchange(
    tester: HypothesisTester,
    pairs: Sequence[tuple[int, int]],
    rows: Sequence[int] | NDArray[np.int64],
) -> HypothesisTest | None:
    """Try pairs of token ids in each other's place."""
    other = np.arange(tester.forward.tensors.vocabulary, dtype=np.int32)
    for one, second in pairs:
        other[one], other[second] = second, one

    def edit(row: int) -> Passage:
        passage = tester.passage(row)
        return replace(passage, ids=other[passage.ids])

    words = ", ".join(f"{one} and {second}" for one, second in pairs)
    return tester.test_pass(
        "exchanged-ids", "special-token-ids", f"token ids {words} exchanged", rows, edit=edit
    )


def _followed(
    tester: HypothesisTester,
    name: str,
    slug: str,
    words: str,
    edit: Callable[[int], Passage | None],
) -> Iterator[HypothesisTest]:
    """Try an edit on a few rows, and on more where it explains something."""
    if tester.out_of_time:
        return
    test = tester.test_pass(name, slug, words, tester.screen, edit=edit)
    if test is not None and test.gain > GAIN:
        test = tester.test_pass(name, slug, words, tester.confirm, edit=edit) or test
    if test is not None:
        yield test


def _context_worth(tester: HypothesisTester) -> float:
    return 1.0 + 3.0 * max(min(first_tokens_excess(tester), 2.0), 0.0)


def _batched(tester: HypothesisTester) -> float:
    """Padding and packing are more likely in the trainer's batches than in the sampler's."""
    return 4.0 if tester.side.name == "trainer" else 0.5


PROMPTS = Experiment(
    name="prompts",
    slugs=("bos-differs", "prompt-template"),
    asks="Did one side see a prompt with a special token more or less, or with text added?",
    run=run_prompts,
    passes=lambda tester: 4.0 + 2.0 * len(tester.forward.tensors.special_ids),
    worth=_context_worth,
)
TRUNCATIONS = Experiment(
    name="truncations",
    slugs=("prompt-truncated",),
    asks="Did one side see only a part of the prompt?",
    run=run_truncations,
    passes=lambda tester: 16.0,
    worth=_context_worth,
)
POSITIONS = Experiment(
    name="positions",
    slugs=("position-ids",),
    asks="Do the positions of the response not follow those of the prompt?",
    run=run_positions,
    of_batch=True,
    passes=lambda tester: 6.0,
)
PADDING = Experiment(
    name="padding",
    slugs=("attention-to-padding",),
    asks="Is padding attended to?",
    run=run_padding,
    of_batch=True,
    passes=lambda tester: 18.0,
    worth=_batched,
)
PACKING = Experiment(
    name="packing",
    slugs=("packing-leak",),
    asks="Do packed rows see each other?",
    run=run_packing,
    of_batch=True,
    passes=lambda tester: 8.0,
    worth=_batched,
)
STRIPPED = Experiment(
    name="stripped",
    slugs=("context-stripped",),
    asks="Were earlier turns or tool outputs dropped from one side's context?",
    run=run_stripped,
    passes=lambda tester: 6.0,
    worth=lambda tester: 8.0 if has_turns(tester) else 0.0,
)

EXCHANGED_IDS = Experiment(
    name="exchanged-ids",
    slugs=("special-token-ids",),
    asks="Have special tokens each other's ids on one side?",
    run=run_exchanged,
    passes=lambda tester: 16.0,
    worth=lambda tester: 6.0 if has_turns(tester) else 0.7,
)

CONTEXTS: Sequence[Experiment] = (
    EXCHANGED_IDS,
    PROMPTS,
    TRUNCATIONS,
    POSITIONS,
    PADDING,
    PACKING,
    STRIPPED,
)
