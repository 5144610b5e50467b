"""Sequences on the page: the worst as far as they fit, requested ones, and some at random."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.pages.packing import packed_document
from rcdiag.results import ScoreResult, to_plain
from tests.builders import write_table

RANDOM = np.random.default_rng(3)
ROWS, LENGTH = 80, 60


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    old = [-RANDOM.exponential(0.5, LENGTH) for _ in range(ROWS)]
    rollout = [np.minimum(row + RANDOM.normal(0.0, 0.05, LENGTH), 0.0) for row in old]
    mask = np.ones((ROWS, LENGTH), int)
    mask[7] = 0
    rollout[9][3] = np.nan
    path = tmp_path_factory.mktemp("shown") / "table.parquet"
    return (
        write_table(
            path,
            response_ids=RANDOM.integers(0, 900, (ROWS, LENGTH)).tolist(),
            rollout_log_probs=[row.tolist() for row in rollout],
            old_log_probs=[row.tolist() for row in old],
            response_mask=mask.tolist(),
        )
        or path
    )


@pytest.fixture(scope="module")
def result(table) -> ScoreResult:
    return rcdiag.score(table)


def rows(sequences) -> list[int]:
    return [sequence.row for sequence in sequences]


def test_short_sequences_are_complete_and_random_ones_are_added(result):
    assert len(result.worst_sequences) == 30
    assert all(one.gaps is None and len(one.log_ratio) == LENGTH for one in result.worst_sequences)
    drawn = rows(result.drawn_sequences)
    assert len(drawn) >= 8
    assert len({*drawn, *rows(result.worst_sequences)}) == 30 + len(drawn)
    assert not {7, 9} & {*drawn}


def test_a_result_without_sequences_is_otherwise_the_same(table, result):
    alone = rcdiag.score(table, sequences=None)
    assert alone.drawn_sequences == []
    assert {one.context for one in alone.worst_sequences} == {None}
    assert rows(alone.worst_sequences) == rows(result.worst_sequences)
    for part in ("mismatch", "corrections", "diagnosis", "findings", "worst_tokens", "examples"):
        assert to_plain(getattr(alone, part)) == to_plain(getattr(result, part))


def test_a_drawn_sequence_is_that_of_its_row(table, result):
    stored = pl.read_parquet(table)
    for one in result.drawn_sequences:
        row = stored.row(one.row, named=True)
        assert one.token_ids == row["response_ids"]
        ratio = np.array(row["old_log_probs"]) - np.array(row["rollout_log_probs"])
        assert one.log_ratio == pytest.approx(ratio.tolist(), abs=2e-6)
        assert one.log_ratio_sum == pytest.approx(ratio.sum(), abs=1e-5)
        assert one.num_tokens == LENGTH


def test_another_seed_draws_others(table, result):
    other = rcdiag.score(table, seed=1)
    assert rows(other.drawn_sequences) != rows(result.drawn_sequences)
    assert other.worst_sequences == result.worst_sequences


def test_a_requested_row_is_included(table, result):
    worst = result.worst_sequences[4].row
    best = min({*range(ROWS)} - {7, 9, *rows(result.worst_sequences)})
    made = rcdiag.score(table, sequences=[worst, best, best])
    assert rows(made.named_sequences) == [best]
    assert rows(made.worst_sequences) == rows(result.worst_sequences)
    assert best not in rows(made.drawn_sequences)


def test_a_requested_long_row_is_complete(tmp_path):
    length = 3000
    old = [-RANDOM.exponential(0.5, length) for _ in range(40)]
    rollout = [np.minimum(row + RANDOM.normal(0.0, 0.05, length), 0.0) for row in old]
    path = tmp_path / "long.parquet"
    write_table(
        path,
        response_ids=RANDOM.integers(0, 900, (40, length)).tolist(),
        rollout_log_probs=[row.tolist() for row in rollout],
        old_log_probs=[row.tolist() for row in old],
    )
    cut = rcdiag.score(path).worst_sequences[2]
    assert len(cut.log_ratio) < length
    whole = rcdiag.score(path, sequences=[cut.row]).worst_sequences[2]
    assert whole.row == cut.row
    assert whole.gaps is None
    assert len(whole.log_ratio) == length
    assert whole.log_ratio_sum == cut.log_ratio_sum


@pytest.mark.parametrize(
    ("row", "words"), [(80, "80 rows, 0 to 79"), (-1, "80 rows"), (7, "no sampled"), (9, "is NaN")]
)
def test_a_row_with_nothing_to_show_is_refused(table, row, words):
    with pytest.raises(RcdiagError, match=words) as raised:
        rcdiag.score(table, sequences=[row])
    assert f"--sequence {row}" in str(raised.value)


def test_with_rows_only_drawn_rows_can_be_requested_by_table_number(table):
    drawn = rcdiag.score(table, rows=50)
    here = drawn.drawn_sequences[0]
    assert rcdiag.score(table, rows=50, sequences=[here.row]).named_sequences == [here]
    refused = 0
    for row in sorted({*range(ROWS)} - {*rows(drawn.readable_sequences)} - {7, 9})[:8]:
        try:
            rcdiag.score(table, rows=50, sequences=[row])
        except RcdiagError as error:
            refused += "rows that were drawn" in str(error)
    assert refused


def test_a_token_takes_about_ten_bytes_of_a_page(result):
    def letters(some: ScoreResult) -> int:
        return len(packed_document(to_plain(some)))

    bare = letters(replace(result, worst_sequences=[], drawn_sequences=[]))
    shown = [*result.worst_sequences, *result.drawn_sequences]
    of_each = (letters(result) - bare) / sum(len(one.log_ratio) for one in shown)
    assert 8 < of_each < 16


def test_random_sequences_take_what_the_worst_leave(table, monkeypatch):
    for tokens, whole in ((30 * LENGTH, 0), (30 * LENGTH + 1, 0), (32 * LENGTH, 2)):
        monkeypatch.setattr("rcdiag.usecases.shown_sequences.TOKENS", tokens)
        made = rcdiag.score(table)
        assert [len(one.log_ratio) for one in made.worst_sequences] == [LENGTH] * 30
        assert [len(one.log_ratio) for one in made.drawn_sequences] == [LENGTH] * whole
