"""Batching of sequences into padded rectangles for an engine."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag import score
from rcdiag.engines import BACKENDS
from rcdiag.engines.notation import parse_policy
from rcdiag.engines.padded_batches import gather_scores, length_buckets, padded, padded_width
from rcdiag.engines.scoring import plan_scoring
from rcdiag.errors import RcdiagError
from rcdiag.progress import SILENT
from rcdiag.table.opening import open_table
from rcdiag.table.stream import decode, read_chunks
from tests.builders import write_table
from tests.engines.engine_here import toy_scoring
from tests.engines.toy_engine import TOY, ToyEngine, make_checkpoint


@given(st.integers(1, 1 << 20))
def test_a_width_holds_the_longest_and_wastes_at_most_a_sixteenth(longest):
    width = padded_width(longest)
    assert longest <= width <= longest * 17 / 16
    assert padded_width(width) == width


def test_there_are_sixteen_widths_an_octave():
    assert len({padded_width(longest) for longest in range(1025, 2049)}) == 16
    assert len({padded_width(longest) for longest in range(32, 64)}) == 17


def test_padding_is_on_the_right_and_within_the_context():
    rows = [np.arange(1, 98), np.arange(1, 3)]
    assert padded(rows, None).shape == (2, 100)
    assert padded(rows, 98).shape == (2, 98)
    # A row longer than the context is refused elsewhere, not truncated here.
    assert padded(rows, 50).shape == (2, 97)
    assert padded(rows, None)[1].tolist() == [1, 2] + [0] * 98
    assert padded(rows, None)[0, :97].tolist() == list(range(1, 98))


@given(st.lists(st.integers(0, 700), max_size=60), st.integers(1, 3000))
def test_every_row_with_something_to_score_is_in_one_bucket(lengths, batch_tokens):
    sizes = np.array(lengths, dtype=np.int64)
    buckets = list(length_buckets(sizes, batch_tokens))
    taken = np.concatenate([np.zeros(0, int), *buckets])
    assert sorted(taken) == np.flatnonzero(sizes).tolist()
    for bucket in buckets:
        assert (
            len(bucket) == 1 or len(bucket) * padded_width(int(sizes[bucket].max())) <= batch_tokens
        )


def rows_of(table: Path, start: int, stop: int):
    return decode(next(read_chunks(open_table(table), [(start, stop)])))


@pytest.fixture
def four_rows(tmp_path) -> Path:
    ids = [[1], [2, 3], [4, 5, 6], []]
    return write_table(tmp_path / "rows.parquet", prompt_ids=[[1]] * 4, response_ids=ids)


@pytest.mark.parametrize(("values", "width"), [(4, 1), (2, 1), (3, 2)])
def test_a_row_with_a_wrong_number_of_values_is_refused_by_number(values, width, four_rows):
    """One extra value would otherwise shift the scores of all later rows."""
    right = [np.zeros((n, 1), np.float32) for n in (2, 3)]
    rows = rows_of(four_rows, 1, 4)
    assert len(gather_scores(rows, [*right, None], entropy=False, top_k=0).log_probs) == 5
    wrong = [right[0], np.zeros((values, width), np.float32), None]
    with pytest.raises(RcdiagError, match=r"row 2: .*for 3 response tokens with 1 values"):
        gather_scores(rows, wrong, entropy=False, top_k=0)


def test_a_row_without_scores_is_named(four_rows):
    rows, right = rows_of(four_rows, 1, 4), np.zeros((3, 1), np.float32)
    with pytest.raises(RcdiagError, match="row 1: the engine returned no scores for 2"):
        gather_scores(rows, [None, right, None], entropy=False, top_k=0)
    with pytest.raises(
        RcdiagError, match="rows 1 to 3: the engine returned scores for 1 of these 3"
    ) as caught:
        gather_scores(rows, [right], entropy=False, top_k=0)
    assert "report it" in caught.value.hint


@pytest.mark.parametrize("column", ["log_probs", "entropy"])
def test_the_number_of_values_of_every_column_is_checked(column, tmp_path):
    class OneTooMany(ToyEngine):
        def score(self, trajectories, progress):
            right = super().score(trajectories, progress)
            return replace(right, **{column: np.append(right.log_probs, np.float32(-1.0))})

    with (
        toy_scoring(tmp_path) as given,
        BACKENDS.with_added(replace(TOY, name="bad", load=OneTooMany)),
        pytest.raises(RcdiagError, match=rf"bad returned 10 values of {column} \(float32\) for"),
    ):
        score(**{**given, "policies": {"old": "bad"}}, output=tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_a_part_for_decode_holds_a_full_decode_batch(tmp_path):
    """Of 4,000 rows of 1,000 tokens a part holds 131, and with decode 1,024."""
    ids = [[1] * 900] * 4000
    table = open_table(
        write_table(tmp_path / "t.parquet", prompt_ids=[[1] * 100] * 4000, response_ids=ids)
    )
    model = str(make_checkpoint(tmp_path / "model"))

    def parts(*policies: str) -> list[int]:
        specs = [parse_policy(text, model) for text in policies]
        plan = plan_scoring(table, specs, tmp_path / "out.parquet", SILENT.say)
        return [stop - start for start, stop in plan.ranges]

    assert parts("a=vllm:bfloat16")[0] == 131
    assert parts("a=vllm:bfloat16,path=decode") == [1024, 1024, 1024, 928]
    assert parts("a=vllm", "b=vllm:bfloat16,path=decode")[0] == 1024
