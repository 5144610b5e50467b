"""The pass over the token ids before an engine starts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.table.survey import Survey, survey
from rcdiag.table.trajectories import ModelLimits
from tests.builders import write_table

MODEL = ModelLimits("models/tiny", vocab_size=100, context=6)


def make(tmp_path, **columns) -> Survey:
    rows = {"prompt_ids": [[1, 2], [3]], "response_ids": [[4, 5, 6], [7]], **columns}
    path = write_table(tmp_path / "a.parquet", **rows)
    return survey(open_table(path), [ModelLimits("models/large", 10**6, None), MODEL])


def refused(tmp_path, **columns) -> RcdiagError:
    with pytest.raises(RcdiagError) as caught:
        make(tmp_path, **columns)
    assert str(tmp_path / "a.parquet") in caught.value.message
    assert caught.value.hint
    return caught.value


def test_sizes_are_counted(tmp_path):
    result = make(tmp_path, response_mask=[[1, 0, 1], [1]], temperature=[0.5, None])
    assert result.prompt_lengths.tolist() == [2, 1]
    assert result.response_lengths.tolist() == [3, 1]
    assert (result.tokens, result.sampled_tokens) == (7, 3)
    assert result.rows_without_temperature == 1


def test_without_the_column_no_row_has_a_temperature(tmp_path):
    assert make(tmp_path).rows_without_temperature == 2


@pytest.mark.parametrize("column", ["prompt_ids", "response_ids"])
def test_ids_outside_the_vocabulary_name_row_column_id_and_model(tmp_path, column):
    error = refused(tmp_path, **{column: [[1, 2], [100]]})
    for output in ("row 1", f"`{column}`", "100", "models/tiny", "vocabulary"):
        assert output in error.message


def test_the_last_id_of_the_vocabulary_is_inside(tmp_path):
    assert make(tmp_path, response_ids=[[99], [0]]).tokens == 5


def test_sequences_longer_than_the_context_name_row_length_and_model(tmp_path):
    error = refused(tmp_path, response_ids=[[1], [1] * 6])
    for output in ("row 1", "7 tokens", "models/tiny", "6", "`prompt_ids`", "`response_ids`"):
        assert output in error.message


def test_a_sequence_as_long_as_the_context_fits(tmp_path):
    assert make(tmp_path, response_ids=[[1], [1] * 5]).lengths.max() == 6


def test_an_empty_prompt_before_a_response_is_refused(tmp_path):
    error = refused(tmp_path, prompt_ids=[[1], []])
    assert "row 1" in error.message
    assert "`prompt_ids`" in error.message


def test_an_empty_prompt_before_an_empty_response_is_accepted(tmp_path):
    assert make(tmp_path, prompt_ids=[[1], []], response_ids=[[1], []]).tokens == 2


def test_a_table_without_any_unmasked_token_is_refused(tmp_path):
    assert "no unmasked" in refused(tmp_path, response_mask=[[0, 0, 0], [0]]).message


def test_a_table_without_prompts_cannot_be_scored(tmp_path):
    path = write_table(tmp_path / "b.parquet", response_ids=[[1]])
    with pytest.raises(RcdiagError, match="prompt_ids"):
        survey(open_table(path), [MODEL])


def test_duplicate_sample_ids_are_refused(tmp_path):
    assert "sample_id" in refused(tmp_path, sample_id=[1, 1]).message


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(1, 60))
def test_ranges_cover_every_row_once_within_the_token_limit(lengths, tokens):
    sizes = np.array(lengths)
    result = Survey(
        prompt_lengths=sizes,
        response_lengths=np.zeros_like(sizes),
        sampled_tokens=1,
        rows_without_temperature=0,
    ).ranges(tokens)
    assert [row for start, stop in result for row in range(start, stop)] == list(range(len(sizes)))
    for start, stop in result:
        assert stop - start == 1 or sizes[start:stop].sum() <= tokens
