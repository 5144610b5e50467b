"""Tables in memory give the same results as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.table.in_memory import name_in_memory

LENGTHS = np.array([3, 1, 4, 2] * 10)
COLUMNS = ("response_ids", "rollout_log_probs", "old_log_probs", "group_id", "reward")


def arrow() -> pa.Table:
    random = np.random.default_rng(3)
    ids = [random.integers(5, 99, n).astype(np.int32) for n in LENGTHS]
    rollout = [-random.exponential(1, n).astype(np.float32) for n in LENGTHS]
    old = [row - np.float32(0.01) for row in rollout]
    groups = [str(row // 4) for row in range(len(LENGTHS))]
    return pa.table([pa.array(c) for c in (ids, rollout, old, groups, LENGTHS * 1.0)], COLUMNS)


def lists() -> dict[str, Any]:
    return arrow().to_pydict()


def in_pandas() -> Any:
    return pytest.importorskip("pandas") and arrow().to_pandas()


FORMS = {
    "a polars DataFrame in memory": lambda: pl.from_arrow(arrow()),
    "a polars LazyFrame in memory": lambda: pl.from_arrow(arrow()).lazy(),
    "a pyarrow Table in memory": arrow,
    "a pyarrow RecordBatch in memory": lambda: arrow().combine_chunks().to_batches()[0],
    "a pyarrow RecordBatchReader in memory": lambda: arrow().to_reader(),
    "a mapping of columns in memory": lists,
    "a pandas DataFrame in memory": in_pandas,
    "a list of rows in memory": lambda: arrow().to_pylist(),
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "a.parquet"
    pq.write_table(arrow(), path)
    return path


@pytest.mark.parametrize("name", FORMS)
def test_a_table_in_memory_gives_the_same_as_the_file(stored, name):
    rows = FORMS[name]()
    assert name_in_memory(rows) == name
    result, expected = rcdiag.score(rows), rcdiag.score(stored)
    assert result.num_tokens == expected.num_tokens == LENGTHS.sum()
    assert result.mismatch["k3_kl"] == expected.mismatch["k3_kl"]
    assert result.provenance["dump"] == [name]
    assert result.provenance["rows"] == len(LENGTHS)


def test_equal_tables_have_equal_fingerprints_and_temporary_files_are_deleted():
    one, other = rcdiag.open_table(lists()), rcdiag.open_table(lists())
    assert one.fingerprint == other.fingerprint
    folder = one.files[0].parquet.parent
    assert folder.exists()
    del one
    assert not folder.exists()


def test_other_column_names_are_read_and_mapped():
    table = arrow().rename_columns(["responses", "inference_logprobs", "mine", "uid", "reward"])
    opened = rcdiag.open_table(table, columns={"old_log_probs": "mine"})
    assert opened.policies == ["rollout", "old"]
    assert opened.naming.taken["response_ids"] == "responses"


def padded(name: str, fill: float, width: int = 6) -> np.ndarray:
    rows = arrow()[name].to_pylist()
    return np.array([row + [fill] * (width - len(row)) for row in rows])


def left_padded(width: int = 5) -> np.ndarray:
    return np.array([[0] * (width - n) + list(range(1, n + 1)) for n in LENGTHS])


def test_tensors_are_cut_by_their_masks():
    torch = pytest.importorskip("torch")
    place = np.arange(6)
    rows: dict[str, Any] = {
        "prompt_ids": torch.tensor(left_padded()),
        "prompt_mask": torch.tensor(left_padded() > 0),
        "completion_ids": torch.tensor(padded("response_ids", 0)),
        "completion_mask": torch.tensor(place < LENGTHS[:, None]).long(),
        "tool_mask": torch.ones(len(LENGTHS), 6),  # padded with 1, as TRL does
        "sampling_per_token_logps": torch.tensor(padded("rollout_log_probs", 0.0)).float(),
        "old_per_token_logps": torch.tensor(padded("old_log_probs", -3.0)).bfloat16(),
        "advantages": torch.zeros(len(LENGTHS)),
    }
    rows["tool_mask"][0, 0] = 0
    table = rcdiag.open_table(rows)
    (change,) = table.metadata["conversion"]["changes"]
    assert change.startswith("rows are cut to where `completion_mask` is 1")
    batch = next(table.batches()).table
    assert batch["response_ids"].to_pylist() == arrow()["response_ids"].to_pylist()
    assert batch["prompt_ids"].to_pylist() == [list(range(1, n + 1)) for n in LENGTHS]
    assert batch["response_mask"].to_pylist()[0] == [0, 1, 1]
    assert batch["advantage"].to_pylist() == [0.0] * len(LENGTHS)
    old = np.concatenate(batch["old_log_probs"].to_pylist())
    expected = np.concatenate(arrow()["old_log_probs"].to_pylist())
    assert np.allclose(old, expected, rtol=2**-8)


def test_an_attention_mask_over_prompt_and_response_cuts_both():
    place = np.arange(6)
    rows = {
        "prompts": left_padded(),
        "responses": padded("response_ids", 0),
        "attention_mask": np.hstack([left_padded() > 0, place < LENGTHS[:, None]]).astype(int),
        "rollout_log_probs": padded("rollout_log_probs", 0.0),
    }
    batch = next(rcdiag.open_table(rows).batches()).table
    assert batch["response_ids"].to_pylist() == arrow()["response_ids"].to_pylist()
    assert batch["prompt_ids"].to_pylist() == [list(range(1, n + 1)) for n in LENGTHS]


def test_a_mask_of_sampled_tokens_masks_padding_as_in_a_file(tmp_path):
    """Such a mask is 0 at tokens of tools too, so it does not show where a response ends."""
    ids, place = padded("response_ids", 0), np.arange(6)
    mask = (place < LENGTHS[:, None]).astype(int)
    mask[0, LENGTHS[0] - 1] = 0  # the last token is a tool's
    rows = {"responses": ids, "response_mask": mask}
    rows |= {name: padded(name, 0.0) for name in ("rollout_log_probs", "old_log_probs")}
    file = tmp_path / "padded.parquet"
    pq.write_table(pa.table({name: pa.array(list(matrix)) for name, matrix in rows.items()}), file)
    for table in (rcdiag.open_table(rows), rcdiag.open_table(file)):
        assert table.naming.padding is not None
        assert "`response_mask` masks the padding" in table.naming.padding.sentence()
        assert rcdiag.score(table).num_tokens == LENGTHS.sum() - 1


def test_a_padded_matrix_without_a_mask_is_refused_for_any_log_probs():
    rows = {"response_ids": padded("response_ids", 0), "old_log_probs": padded("old_log_probs", -3)}
    with pytest.raises(RcdiagError, match="padded to 6 tokens with token 0") as caught:
        rcdiag.open_table(rows)
    assert "attention_mask" in caught.value.hint


def test_rows_may_be_arrays_tensors_and_tuples():
    torch = pytest.importorskip("torch")
    rows = lists()
    rows["rollout_log_probs"] = [torch.tensor(r).bfloat16() for r in rows["rollout_log_probs"]]
    rows["response_ids"] = tuple(np.array(r) for r in rows["response_ids"])
    rows["reward"] = [torch.tensor(r) for r in rows["reward"]]
    table = rcdiag.open_table(rows)
    batch = next(table.batches()).table
    assert batch["response_ids"].to_pylist() == lists()["response_ids"]
    assert batch["reward"].to_pylist() == lists()["reward"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"response_ids": [[1], [2]], "step": [1]}, "column `step` has 1 rows, `response_ids`"),
        ({"response_ids": [[1], [2], "a"]}, "row 2: column `response_ids`"),
        ({"response_ids": [[1], ["x"]]}, "row 1: column `response_ids`"),
        ({"response_ids": [[1], [2**70]]}, "row 1: column `response_ids`"),
        ({"response_ids": 3}, "column `response_ids` is int"),
        ({"tokens_of": [[1]]}, "no column `response_ids`"),
        ({}, "no columns"),
        (3, "not a table"),
    ],
)
def test_invalid_tables_are_refused_with_column_and_row(rows, message):
    with pytest.raises(RcdiagError) as caught:
        rcdiag.open_table(rows)
    assert message in caught.value.message
    assert caught.value.hint


def test_rows_of_several_types_get_their_common_type():
    torch = pytest.importorskip("torch")
    rows = {
        "response_ids": [np.array([1, 2], np.int32), np.array([3], np.uint16), [4]],
        "rollout_log_probs": [np.array([-0.1, -0.2]), np.array([-0.5], np.float16), [-1.0]],
        "old_log_probs": [torch.tensor([-0.5, -1.0]).bfloat16(), torch.tensor([-0.5]).double(), []],
    }
    rows["old_log_probs"][2] = np.array([-2.0], np.float32)
    (batch,) = rcdiag.open_table(rows).batches()
    assert batch.table["response_ids"].to_pylist() == [[1, 2], [3], [4]]
    assert batch.table["old_log_probs"].to_pylist() == [[-0.5, -1.0], [-0.5], [-2.0]]
    assert batch.table["rollout_log_probs"].to_pylist()[1:] == [[-0.5], [-1.0]]


@pytest.mark.parametrize("kind", ["meta", "sparse"])
def test_tensors_whose_values_cannot_be_read_are_refused_with_their_column(kind):
    torch = pytest.importorskip("torch")
    made = torch.zeros(2, 2, device="meta") if kind == "meta" else torch.eye(2).to_sparse()
    with pytest.raises(RcdiagError, match="column `old_log_probs`: its values cannot be read"):
        rcdiag.open_table({"response_ids": [[1, 2], [3, 4]], "old_log_probs": made})


def test_a_row_in_memory_is_named_in_errors():
    rows = lists()
    rows["old_log_probs"][5] = rows["old_log_probs"][5] + [-1.0]
    with pytest.raises(RcdiagError, match=r"in memory, row 5: column `.*`: 2 values for 1 tokens"):
        rcdiag.score(rows)


def test_a_failing_lazy_query_is_an_error():
    frame = pl.from_arrow(arrow()).lazy().select(pl.col("no_such"))
    with pytest.raises(RcdiagError, match="polars LazyFrame in memory: polars cannot evaluate it"):
        rcdiag.open_table(frame)


def in_pandas_with_arrow_types() -> Any:
    pandas = pytest.importorskip("pandas")
    return arrow().to_pandas(types_mapper=pandas.ArrowDtype)


def with_categories() -> pl.DataFrame:
    frame = pl.from_arrow(arrow())
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(pl.col("group_id").cast(pl.Categorical))


def views() -> pa.Table:
    table = arrow()
    kinds = {"response_ids": pa.list_view(pa.int32()), "old_log_probs": pa.list_view(pa.float32())}
    for name, kind in kinds.items():
        column = pa.array(table[name].to_pylist(), kind)
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


@pytest.mark.parametrize(
    "rows",
    [
        lambda: in_pandas().astype({"group_id": "category"}),
        lambda: in_pandas().convert_dtypes(),
        lambda: in_pandas().set_index("group_id"),
        lambda: in_pandas().set_index(["group_id", "reward"]),
        lambda: in_pandas().set_index("group_id", drop=False),
        lambda: in_pandas().set_index("group_id", append=True),
        in_pandas_with_arrow_types,
        with_categories,
        lambda: with_categories().lazy(),
        views,
    ],
)
def test_types_of_data_frames_change_no_cell(rows, stored):
    names = sorted(COLUMNS)
    opened = rcdiag.open_table(rows())
    assert sorted(opened.columns) == names
    cells = [batch.table.select(names).to_pylist() for batch in opened.batches(names)]
    assert [row for part in cells for row in part] == arrow().select(names).to_pylist()


def test_a_row_without_a_value_is_null():
    rows = arrow().to_pylist()
    del rows[3]["reward"]
    rows[4]["old_log_probs"] = None
    frame = in_pandas()
    frame.loc[3, "reward"] = np.nan
    frame.at[4, "old_log_probs"] = np.nan
    views_of = views().to_pydict()
    views_of["reward"][3] = views_of["old_log_probs"][4] = None
    as_views = pa.table(
        {
            **views_of,
            "old_log_probs": pa.array(views_of["old_log_probs"], pa.list_view(pa.float32())),
        }
    )
    for given in (rows, frame, as_views):
        batch = next(rcdiag.open_table(given).batches()).table
        assert batch["reward"].to_pylist()[:5] == [3.0, 1.0, 4.0, None, 3.0]
        old = batch["old_log_probs"].to_pylist()
        assert old[4] is None
        assert old[5] == arrow()["old_log_probs"][5].as_py()


def test_a_frame_without_rows_is_refused():
    with pytest.raises(RcdiagError, match="the table has zero rows"):
        rcdiag.score(arrow().slice(0, 0))


@pytest.mark.parametrize(
    ("rows", "message", "way"),
    [
        ([{"response_ids": [1]}, [1]], "row 1: it is list", "every row maps"),
        ([arrow(), arrow()], "a list is not a table", "concatenate several frames"),
        ({"response_ids": ["[1, 2]"]}, "column `response_ids` is string", "json"),
    ],
)
def test_lists_of_other_values_are_refused_with_a_hint(rows, message, way):
    with pytest.raises(RcdiagError) as caught:
        rcdiag.open_table(rows)
    assert message in caught.value.message
    assert way in caught.value.hint


def test_two_tables_in_memory_are_joined():
    one = pl.from_arrow(arrow()).with_row_index("sample_id").cast({"sample_id": pl.Int64})
    other = one.rename({"old_log_probs": "fresh_log_probs"}).drop("rollout_log_probs")
    result = rcdiag.compare(one, other)
    assert set(result.policies) == {"rollout", "old", "fresh"}
