"""JSON lines with arbitrary column names are read like parquet with the same columns."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.progress import Progress
from rcdiag.table.opening import open_table
from rcdiag.table.padding import PADDED_ROWS
from rcdiag.table.readers import json_lines
from rcdiag.table.rewritten import Copies
from rcdiag.table.sources import SourceFile

OWN = {"response_ids": "output", "rollout_log_probs": "sampler", "old_log_probs": "learner"}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(**more: Any) -> dict[str, Any]:
    return {"output": [5, 6], "sampler": [-0.5, -1.5], "learner": [-0.25, -2], **more}


def test_numbers_are_those_of_the_same_columns_in_parquet(tmp_path):
    rows = [
        row(output=list(range(n)), sampler=[-0.5 * k for k in range(n)], learner=[-1.0] * n, uid=u)
        for n, u in ((3, "a"), (5, "a"), (4, "b"), (6, "b"))
    ]
    lines = write(tmp_path / "t.jsonl", rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    results = [rcdiag.score(path, columns=OWN).mismatch for path in (lines, tmp_path / "t.parquet")]
    assert results[0] == results[1]
    assert rcdiag.score(lines, columns=OWN).num_clusters == 2


def test_names_of_trainers_are_read_and_padding_is_cut(tmp_path):
    """Like TRL's tensors: padded to one width, each with its mask."""
    rows = [
        {
            "prompt_ids": [0, 7],
            "prompt_mask": [0, 1],
            "completion_ids": [5, 6, 0],
            "completion_mask": [1, 1, 0],
            "sampling_per_token_logps": [-0.5, -1.5, 0.0],
            "old_per_token_logps": [-0.5, -2.0, 0.0],
        },
        {
            "prompt_ids": [8, 9],
            "prompt_mask": [1, 1],
            "completion_ids": [5, 6, 7],
            "completion_mask": [1, 1, 1],
            "sampling_per_token_logps": [-0.5, -1.5, -1.0],
            "old_per_token_logps": [-0.5, -2.0, -1.0],
        },
    ]
    table = rcdiag.open_table(write(tmp_path / "t.jsonl", rows))
    (batch,) = table.batches()
    assert batch.table["response_ids"].to_pylist() == [[5, 6], [5, 6, 7]]
    assert batch.table["prompt_ids"].to_pylist() == [[7], [8, 9]]
    other = [
        {name: (values * 2)[: size if len(values) == 3 else 2] for name, values in rows[1].items()}
        for size in (2, 4)
    ]
    write(tmp_path / "t.jsonl", [*rows * PADDED_ROWS, *other])
    with pytest.raises(RcdiagError, match=r"/t\.jsonl, rows .*lists differ in length"):
        rcdiag.open_table(tmp_path / "t.jsonl")


def test_a_file_of_many_parts_is_one_table(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "VALUES_AT_A_TIME", 10)
    rows = [row(number=1, tag=None), row(number=0.5), row(tag="x", more=[{"a": 1}]), row(), row()]
    table = rcdiag.open_table(write(tmp_path / "t.jsonl", rows), columns=OWN)
    read = [each for batch in table.batches() for each in batch.table.to_pylist()]
    assert [each["number"] for each in read] == [1.0, 0.5, None, None, None]
    assert [each["tag"] for each in read] == [None, None, "x", None, None]
    assert [each["more"] for each in read] == [None, None, '[{"a":1}]', None, None]
    assert [each["response_ids"] for each in read] == [[5, 6]] * 5


def nested(place: int) -> dict[str, Any]:
    return {
        "prompt": {"text": "a", "token_ids": [1, place // 2]},
        "response": {"token_ids": [5, 6, place], "logprobs": [-0.5, -1.5, -0.25]},
        "trainer": {"logprobs": [-0.5, -1.0, -0.25], "config": {"beta": {"value": 0.5}}},
        "meta": {"step": 3, "uid": f"g{place // 2}", "temperature": 0.5},
        "reward": 1.0,
    }


def test_fields_of_objects_are_columns(tmp_path):
    path = write(tmp_path / "t.jsonl", [nested(place) for place in range(4)])
    table = rcdiag.open_table(path, columns={"rollout_log_probs": "response.logprobs"})
    rows = [each for batch in table.batches() for each in batch.table.to_pylist()]
    for place, each in enumerate(rows):
        assert each["response_ids"] == [5, 6, place]
        assert each["rollout_log_probs"] == [-0.5, -1.5, -0.25]
        assert each["old_log_probs"] == [-0.5, -1.0, -0.25]
        assert each["prompt_ids"] == [1, place // 2]
        assert (each["step"], each["group_id"]) == (3, f"g{place // 2}")
        assert (each["temperature"], each["reward"]) == (0.5, 1.0)
        assert each["prompt.text"] == "a"
        assert each["trainer.config.beta.value"] == 0.5
    assert len(rows) == 4


def test_an_ambiguous_nested_name_is_not_guessed(tmp_path):
    path = write(tmp_path / "t.jsonl", [nested(place) for place in range(4)])
    with pytest.raises(RcdiagError, match=r"no column `rollout_log_probs` \(`response.logprobs`"):
        rcdiag.score(path)


def test_objects_of_very_many_fields_are_text(tmp_path):
    rows = [row(of={f"user{place}-{k}": k for k in range(40)}) for place in range(3)]
    table = rcdiag.open_table(write(tmp_path / "t.jsonl", rows), columns=OWN)
    read = [each for batch in table.batches() for each in batch.table.to_pylist()]
    assert [json.loads(each["of"]) for each in read[1:]] == [each["of"] for each in rows[1:]]
    assert len(table.columns) < 50


def test_a_path_that_is_also_a_key_is_refused(tmp_path):
    path = write(tmp_path / "t.jsonl", [row(), {**row(of={"a": 1}), "of.a": 2}])
    with pytest.raises(
        RcdiagError, match=r"line 2: `of\.a` is both a key and a field of an object"
    ):
        rcdiag.open_table(path, columns=OWN)


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        ([[1, "a"], [1, "a"]], "line 1: `extra` holds 'a' at place 1, and 1 elsewhere"),
        ([[1], ["a"]], "line 2: `extra` holds 'a' at place 0, and 1 elsewhere"),
        ([[1], "a"], "line 2: `extra` holds str, and lists of numbers in other lines"),
    ],
)
def test_what_is_among_numbers_is_named(tmp_path, lists, words):
    path = write(tmp_path / "t.jsonl", [row(extra=values) for values in lists])
    with pytest.raises(RcdiagError, match=re.escape(words)):
        rcdiag.open_table(path, columns=OWN)


def test_objects_without_fields_are_text(tmp_path):
    rows = [row(usage={}, of={"a": {}}), row(usage={}, of={"a": {"b": 1}}), row()]
    table = rcdiag.open_table(write(tmp_path / "t.jsonl", rows), columns=OWN)
    read = [each for batch in table.batches() for each in batch.table.to_pylist()]
    assert [each["usage"] for each in read] == ["{}", "{}", None]
    assert [each["of.a"] for each in read] == ["{}", None, None]
    assert [each["of.a.b"] for each in read] == [None, 1, None]


def test_progress_of_reading_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "VALUES_AT_A_TIME", 14)
    for name in ("1.jsonl", "2.jsonl"):
        write(tmp_path / name, [row(), row(), row()])
    heard: list[tuple[Any, ...]] = []

    class Heard(Progress):
        def converted(self, *told: Any) -> None:
            heard.append(told)

    open_table(tmp_path, columns=OWN, progress=Heard())
    assert heard == [
        (str(tmp_path / f"{number}.jsonl"), number, 2, rows, 2 * rows)
        for number, rows in ((1, 2), (1, 3), (2, 5), (2, 6))
    ]


def test_an_error_names_the_line(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("\n\n".join(json.dumps(each) for each in (row(), row(sampler=[-0.5]))))
    with pytest.raises(RcdiagError, match=r"t\.jsonl, line 3"):
        rcdiag.score(path, columns=OWN)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("text", "`sampler` holds str"),
        ([-0.5, "x"], "'x' at place 1"),
        ([-0.5, [1]], r"\[1\] at place 1"),
        ({"a": 1}, "holds dict"),
        ([2**70, -1.0], "at place 0"),
    ],
)
def test_other_values_among_lists_of_numbers_are_refused(tmp_path, value, what):
    path = write(tmp_path / "t.jsonl", [row(), row(sampler=value)])
    with pytest.raises(RcdiagError, match=rf"line 2: .*{what}"):
        rcdiag.score(path, columns=OWN)


def test_other_columns_without_one_type_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "VALUES_AT_A_TIME", 1)
    path = write(tmp_path / "t.jsonl", [row(calls=[]), row(calls=[{"name": "x"}])])
    table = rcdiag.open_table(path, columns=OWN)
    assert "calls" not in table.columns
    assert [*table.metadata["conversion"]["changes"]] == [
        "calls: dropped, lines hold types that cannot be combined"
    ]


def test_lists_of_nulls_take_the_type_of_later_lists(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "VALUES_AT_A_TIME", 1)
    rows = [row(sampler=[None, None]), row(rewards=[None]), row(rewards=[0.5])]
    table = rcdiag.open_table(write(tmp_path / "t.jsonl", rows), columns=OWN)
    read = [each for batch in table.batches() for each in batch.table.to_pylist()]
    assert [each["rewards"] for each in read] == [None, [None], [0.5]]
    assert [each["rollout_log_probs"] for each in read] == [[None, None], *[[-0.5, -1.5]] * 2]


def test_columns_without_a_common_type_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "VALUES_AT_A_TIME", 1)
    path = write(tmp_path / "t.jsonl", [row(other=[0.5, 1.5]), row(other="none")])
    with pytest.raises(RcdiagError, match="`other` is a list of numbers in some lines"):
        rcdiag.score(path, columns=OWN)


def test_a_log_beside_a_dump_is_ignored(tmp_path):
    table = pa.Table.from_pylist([{"response_ids": [1, 2], "rollout_log_probs": [-1.0, -2.0]}])
    pq.write_table(table, tmp_path / "dump.parquet")
    write(tmp_path / "metrics.jsonl", [{"step": 1, "loss": 0.5, "grads": [0.5, 0.25]}])
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert rcdiag.open_table(tmp_path).num_rows == 1


def test_token_ids_alone_are_a_dump(tmp_path):
    """Engines compute the log-probs later."""
    table = rcdiag.open_table(write(tmp_path / "t.jsonl", [{"response_ids": [1, 2]}]))
    assert (table.num_rows, list(table.policies)) == (1, [])


def test_convert_writes_it(tmp_path):
    result = rcdiag.convert(
        write(tmp_path / "t.jsonl", [row(), row()]), tmp_path / "t.parquet", columns=OWN
    )
    assert (result.format, result.rows, result.tokens) == ("json-lines", 2, 4)
    assert result.policies == ["rollout", "old"]


NUMBERS = st.lists(st.none() | st.integers(-(2**53), 2**53) | st.floats(), max_size=4)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"ids": st.lists(st.integers(0, 2**31 - 1), max_size=4)},
            optional={"numbers": NUMBERS, "name": st.text(), "any": st.integers() | st.text()},
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_values_survive_a_round_trip(tmp_path_factory, rows):
    """Including bare NaN and infinities, nulls, and rows that lack a column."""
    folder = tmp_path_factory.mktemp("lines")
    path = write(folder / "t.jsonl", rows)
    copies = Copies(json_lines.JSON_LINES, [SourceFile(path)])
    written, origin = copies.of(0, {})
    assert [origin.where(row) for row in range(len(rows))] == [
        f"{path}, line {number}" for number in range(1, len(rows) + 1)
    ]
    read = pq.read_table(written)
    for name in read.column_names:
        given_values = [each.get(name) for each in rows]
        values = read[name].to_pylist()
        if name == "any" and pa.types.is_string(read[name].type):
            given_values = [None if each is None else str(each) for each in given_values]
        np.testing.assert_array_equal(_flat(values), _flat(given_values))


def _flat(values: list[Any]) -> np.ndarray:
    """Flatten lists with their lengths; null is NaN in lists of numbers."""
    if not any(isinstance(each, list) for each in values):
        return np.array([repr(each) for each in values])
    parts = [[-1.0 if each is None else len(each), *(each or [])] for each in values]
    return np.array([value for part in parts for value in part], float)


@pytest.mark.parametrize(
    ("masks", "words"),
    [
        ([[True, 1]], "line 1: `mask` holds 1 at place 1, and True elsewhere"),
        ([[1, True]], "line 1: `mask` holds True at place 1, and 1 elsewhere"),
        ([[1, 0], [None, True]], "line 2: `mask` holds True at place 1, and 1 elsewhere"),
        ([[True, False], [1, 0]], "line 2: `mask` holds 1 at place 0, and True elsewhere"),
        ([[None, 0.5], [True, None]], "line 2: `mask` holds True at place 0, and 0.5 elsewhere"),
        ([[0.5, 2**60 + 1]], "`mask` is not a column of numbers"),
    ],
)
def test_true_and_numbers_in_one_column_are_refused_with_their_place(tmp_path, masks, words):
    lines = write(tmp_path / "t.jsonl", [row(mask=mask) for mask in masks])
    with pytest.raises(RcdiagError, match=r"t\.jsonl") as caught:
        rcdiag.open_table(lines, columns=OWN)
    assert words in caught.value.message
    assert caught.value.hint == "a column has one type; write the dump again"


def test_true_and_numbers_in_parts_of_a_file_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "VALUES_AT_A_TIME", 1)
    lines = write(tmp_path / "t.jsonl", [row(mask=[True, False]), row(mask=[1, 0])])
    with pytest.raises(RcdiagError, match="`mask` is a list of numbers in some lines"):
        rcdiag.open_table(lines, columns=OWN)


@pytest.mark.parametrize("masks", [[[True, False], [None, True]], [[1, 0], [None, 0.5]]])
def test_one_kind_with_nulls_is_a_column(tmp_path, masks):
    lines = write(tmp_path / "t.jsonl", [row(mine=mask) for mask in masks])
    (batch,) = rcdiag.open_table(lines, columns=OWN).batches()
    assert batch.table["mine"].to_pylist() == masks


def test_whole_numbers_are_log_probs_too(tmp_path):
    """JSON has one type of numbers; a writer may drop `.0`."""
    whole = {"tokens": [5, 6, 7], "rollout_logps": [0, -1, -2], "old_log_probs": [-1, -1, -2]}
    table = rcdiag.open_table(write(tmp_path / "t.jsonl", [whole, whole]))
    (batch,) = table.batches()
    assert batch.table["rollout_log_probs"].to_pylist() == [[0.0, -1.0, -2.0]] * 2
    named = write(tmp_path / "n.jsonl", [row(learner=[-1, -2], adv=[1, 1])] * 2)
    (batch,) = rcdiag.open_table(named, columns={**OWN, "advantages": "adv"}).batches()
    assert batch.table["old_log_probs"].to_pylist() == [[-1.0, -2.0]] * 2
    assert batch.table["advantages"].to_pylist() == [[1.0, 1.0]] * 2


@pytest.mark.parametrize(
    ("name", "good", "bad", "words"),
    [
        ("old_log_probs", None, [True, False], "is list<item: bool>, wanted list<float32>"),
        ("old_log_probs", None, -1.5, "is double, wanted list<float32>"),
        ("old_log_probs", None, ["-1", "-2"], "is string, wanted list<float32>"),
        ("response_ids", [5, 6], [5.5, 6], "is list<item: double>, wanted list<int32>"),
        ("response_mask", [1, 0], [0.5, 0], "is list<item: double>, wanted list<uint8>"),
        ("reward", 0.5, "good", "is string, wanted a number"),
        ("group_id", None, [1], "is list<item: int64>, wanted string or int64"),
    ],
)
def test_a_wrong_type_is_refused_with_its_line(tmp_path, name, good, bad, words):
    own = {"response_ids": [5, 6], "rollout_log_probs": [-0.5, -1], "old_log_probs": [-0.5, -1]}
    file = write(tmp_path / "t.jsonl", [{**own, name: good}, {**own, name: bad}])
    with pytest.raises(RcdiagError, match=re.escape(f"t.jsonl, line 2: column `{name}` {words}")):
        rcdiag.open_table(file)
