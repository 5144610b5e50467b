"""Experiments on batching: position ids, attention to padding, packed rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Array, Counts
from rcdiag.diagnosis.experiments.fit import Residual
from rcdiag.diagnosis.experiments.hypothesis_tester import (
    Edit,
    HypothesisTest,
    HypothesisTester,
    experiment,
)
from rcdiag.diagnosis.experiments.prompts import with_prompt
from rcdiag.diagnosis.experiments.thresholds import GAIN
from rcdiag.engines.changes import Passage

BLOCKS = (16, 8, 32, 4, 64)  # numbers of rows that may be padded together
MOST_PACKED = 6  # at most this many rows precede a row in its pack


def _batching_worth(tester: HypothesisTester) -> float:
    """Return 4 for the trainer, whose batches are more likely padded or packed, else 0.5."""
    return 4.0 if tester.side.name == "trainer" else 0.5


@experiment(
    slugs=("position-ids",),
    of_batch=True,
    passes=lambda tester: 6.0,
)
def positions(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try positions of the response that restart at 0, or that follow a gap such as the padding."""

    def placed(start_of: Callable[[int], int], row: int) -> Passage:
        passage = tester.passage(row)
        response = np.arange(len(passage.ids) - passage.prefix)
        positions = np.concatenate([np.arange(passage.prefix), start_of(row) + response])
        return replace(passage, positions=positions)

    def after_prompt(gap: int, row: int) -> int:
        return len(tester.sample.prompt(row)) + gap

    starts: list[tuple[str, Callable[[int], int]]] = [
        ("from 0", lambda row: 0),
        ("one later than they are", partial(after_prompt, 1)),
        ("one earlier than they are", partial(after_prompt, -1)),
    ]
    for words, width in padded_widths(tester):
        starts.append((f"from the padded prompt width of {words}", width.__getitem__))
    for words, start_of in starts:
        words = f"positions of the response {words}"
        yield from _tried(tester, "position-ids", words, partial(placed, start_of))


@experiment(
    slugs=("attention-to-padding",),
    of_batch=True,
    passes=lambda tester: 18.0,
    worth=_batching_worth,
)
def padding(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try prompts, or whole rows, whose padding on the left is attended to.

    Positions count from the padding on, or from the prompt on, as in generation with a mask.
    """

    def padded(width: Mapping[int, int], pads_at: int | None, row: int) -> Passage | None:
        prompt = tester.sample.prompt(row)
        missing = width[row] - len(prompt)
        padding = np.full(missing, tester.forward.tensors.pad_id, np.int32)
        passage = with_prompt(tester, row, np.concatenate([padding, prompt]))
        if passage is None or pads_at is None:
            return passage
        counted = np.arange(len(passage.ids) - missing)
        return replace(passage, positions=np.concatenate([np.full(missing, pads_at), counted]))

    slug = "attention-to-padding"
    for words, width in padded_widths(tester):
        for pads_at in (0, None, 1):
            how = "" if pads_at is None else f", at position {pads_at}"
            words_of_prompt = f"padding attended to{how}, up to the longest prompt of {words}"
            yield from _tried(tester, slug, words_of_prompt, partial(padded, width, pads_at))
    for words, width in padded_widths(tester, whole=True):
        words = f"padding attended to, up to the longest prompt and response of {words}"
        yield from _tried(tester, slug, words, partial(padded, width, None))


def _tried(tester: HypothesisTester, slug: str, words: str, edit: Edit) -> Iterator[HypothesisTest]:
    """Test an edit on a few rows, and on more if it explains something."""
    test = None if tester.out_of_time else tester.test_pass(slug, words, edit=edit)
    if test is not None:
        yield tester.confirmed(test)


def padded_widths(
    tester: HypothesisTester, *, whole: bool = False
) -> Iterator[tuple[str, dict[int, int]]]:
    """Yield the padded width of each row's prompt, padded within the table or blocks of rows.

    Each comes with a name of the block. The width is the length of the longest prompt; with `whole`
    it is chosen so that prompt and response together have the length of the longest row.
    """
    case = tester.sample.case
    assert case.prompt_ids is not None
    behind = case.lengths if whole else np.zeros_like(case.lengths)
    lengths = case.prompt_ids.lengths + behind
    yield "the table", dict(enumerate((lengths.max() - behind).tolist()))
    for block in BLOCKS:
        if len(lengths) > block:
            most = np.maximum.reduceat(lengths, np.arange(0, len(lengths), block))
            width = np.repeat(most, block)[: len(lengths)] - behind
            yield f"blocks of {block} rows", dict(enumerate(width.tolist()))


@experiment(
    slugs=("packing-leak",),
    of_batch=True,
    passes=lambda tester: 8.0,
    worth=_batching_worth,
)
def packing(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try rows that attend to the rows packed before them; positions continue or restart."""
    for anew in (False, True):
        test = _packing(tester, tester.screen, anew)
        if test is not None and test.gain > GAIN:
            test = _packing(tester, tester.confirm[::2], anew) or test
        if test is not None:
            yield test
            if test.residual.within(tester.sample.noise):
                return


def _packing(tester: HypothesisTester, rows: Counts, anew: bool) -> HypothesisTest | None:
    """Test packing, with the number of preceding rows (to MOST_PACKED) that fits each row best."""
    spans = {int(row): tester.sample.tokens_of([int(row)]) for row in rows}

    def residual_in(row: int, column: Array) -> Residual:
        known = tester.side.known[spans[row]]
        return tester.residual_of(column[known], spans[row][known])

    columns = {row: tester.side.expected[span] for row, span in spans.items()}
    residual = {row: residual_in(row, column) for row, column in columns.items()}
    before_of = dict.fromkeys(spans, 0)
    for before in range(1, MOST_PACKED + 1):
        open_rows = [row for row in spans if not residual[row].within(tester.sample.noise)]
        better = False
        for row, column in _packed_columns(tester, open_rows, before, anew).items():
            found = residual_in(row, column)
            if found.nats < residual[row].nats - GAIN:
                residual[row], columns[row], before_of[row] = found, column, before
                better = True
        if tester.out_of_time or (before > 1 and not better):
            break
    if not any(before_of.values()):
        return None
    words = "restart in each row" if anew else "continue"
    return tester.test(
        "packing-leak",
        f"rows attend to the rows packed before them; positions {words}",
        np.concatenate(list(columns.values())),
        np.concatenate(list(spans.values())),
        values={"rows_before": float(np.median(list(before_of.values())))},
    )


def _packed_columns(
    tester: HypothesisTester, rows: Sequence[int], before: int, anew: bool
) -> dict[int, Array]:
    """Return the log-probs of rows with `before` preceding rows in their context, by row."""
    passages = []
    for row in rows:
        if row < before:
            continue
        parts = [
            np.concatenate([tester.sample.prompt(one), tester.sample.response(one)])
            for one in range(row - before, row + 1)
        ]
        ids = np.concatenate(parts).astype(np.int32)
        places = np.arange(len(ids) - tester.sample.case.lengths[row], len(ids))
        positions = np.concatenate([np.arange(len(part)) for part in parts]) if anew else None
        passages.append(Passage(ids, places, row, positions, 0, tester.temperature_of(row)))
    passages = [one for one in passages if tester.fits(one)]
    if not passages:
        return {}
    ends = np.cumsum([len(one.places) for one in passages])[:-1]
    columns = np.split(tester.forward.log_probs(passages), ends)
    return {one.row: column for one, column in zip(passages, columns, strict=True)}


BATCHES = (positions, padding, packing)
