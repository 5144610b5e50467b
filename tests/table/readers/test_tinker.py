"""tinker-cookbook's captures: turns joined into trajectories, in SQLite and as JSON lines."""

import gzip
import json
import shutil
import sqlite3

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.reader import Dump
from rcdiag.table.readers.tinker import TINKER
from tests.table.readers.rows_of import refusal, rows_of, write_lines

COLUMNS = (
    "run_id",
    "run_attempt",
    "split",
    "iteration",
    "group_idx",
    "traj_idx",
    "purpose",
    "sampling_session_id",
    "seq_id",
    "sample_idx",
    "policy_version",
    "created_at",
    "prompt_tokens",
    "sampled_tokens",
    "logprobs",
    "metadata",
)


def call(prompt, *samples, seq=1, scope=None, **fields):
    """Return a record of a call, as the exporter writes it; samples are (tokens, log-probs)."""
    record = {
        "kind": "sample",
        "scope": {
            "run_id": "run",
            "run_attempt": 1,
            "split": "train",
            "iteration": 4,
            "group_idx": 2,
            "traj_idx": 0,
            "purpose": "rollout",
        },
        "created_at": 1.5,
        "num_samples": len(samples),
        "sampling_session_id": "session",
        "seq_id": seq,
        "model_path": "tinker://weights/4",
        "prompt_tokens": prompt,
        "prompt_length": len(prompt or ()),
        "sampling_params": {
            "max_tokens": 8,
            "temperature": 0.7,
            "top_p": 1.0,
            "top_k": -1,
            "seed": None,
        },
        "samples": [
            {"tokens": tokens, "logprobs": log_probs, "stop_reason": "stop"}
            for tokens, log_probs in samples
        ],
        "status": "ok",
    }
    record["scope"] = record["scope"] | scope if scope is not None else record["scope"]
    return record | fields


def write_jsonl(folder, calls):
    return write_lines(folder / "capture" / "sample.jsonl", calls)


def write_store(folder, calls):
    """Write calls as the store does: one row per sample, lists as JSON text."""
    file = folder / "capture.sqlite"
    connection = sqlite3.connect(file)
    kinds = ", ".join(f"{name} {'TEXT' if 'tokens' in name else ''}" for name in COLUMNS)
    connection.execute(f"CREATE TABLE wire_rows (cursor INTEGER PRIMARY KEY, {kinds})")
    for record in calls:
        for place, sample in enumerate(record.get("samples") or []):
            extra = {"sampling_params": record["sampling_params"]}
            row = record["scope"] | {
                "sampling_session_id": record["sampling_session_id"],
                "seq_id": record["seq_id"],
                "sample_idx": place,
                "policy_version": record["model_path"],
                "created_at": record["created_at"],
                "prompt_tokens": json.dumps(record["prompt_tokens"]),
                "sampled_tokens": json.dumps(sample["tokens"]),
                "logprobs": json.dumps(sample["logprobs"]),
                "metadata": json.dumps(extra | {"stop_reason": sample["stop_reason"]}),
            }
            marks = ", ".join("?" * len(COLUMNS))
            connection.execute(
                f"INSERT INTO wire_rows ({', '.join(COLUMNS)}) VALUES ({marks})",
                [row.get(name) for name in COLUMNS],
            )
    connection.commit()
    connection.close()
    return file


WRITERS = pytest.mark.parametrize("write", [write_jsonl, write_store])

COMMON = {
    "temperature": 0.7,
    "top_p": 1.0,
    "top_k": -1,
    "model_path": "tinker://weights/4",
    "finish_reason": "stop",
    "turn": 0,
    "step": 4,
    "group_id": "run/train/4/2",
    "split": "train",
    "purpose": "rollout",
}


@WRITERS
def test_turns_of_a_trajectory_are_one_row(tmp_path, write):
    first = call([1, 2], ([3, 4], [-0.5, -0.25]))
    other = call([9], ([8], [-1.0]), seq=2, scope={"traj_idx": 1})
    second = call([1, 2, 3, 4, 5, 6], ([7], [-0.75]), seq=3)
    result = rows_of(TINKER, write(tmp_path, [first, other, second]))
    assert result.rows == [
        {
            "prompt_ids": [1, 2],
            "response_ids": [3, 4, 5, 6, 7],
            "response_mask": [1, 1, 0, 0, 1],
            "rollout_log_probs": [-0.5, -0.25, 0.0, 0.0, -0.75],
        }
        | COMMON,
        {
            "prompt_ids": [9],
            "response_ids": [8],
            "response_mask": [1],
            "rollout_log_probs": [-1.0],
        }
        | COMMON,
    ]
    assert result.numbers == [1, 2]
    assert list(result.changes.values()) == [1]


@WRITERS
def test_a_rewritten_history_begins_a_new_row(tmp_path, write):
    calls = [
        call([1, 2], ([3, 4], [-0.5, -0.25])),
        call([1, 2, 4, 5], ([6], [-0.75]), seq=2),
        call([1, 2, 4, 5, 6, 7], ([8], [-0.125]), seq=3),
    ]
    result = rows_of(TINKER, write(tmp_path, calls))
    assert result.column("prompt_ids") == [[1, 2], [1, 2, 4, 5]]
    assert result.column("response_ids") == [[3, 4], [6, 7, 8]]
    assert result.column("response_mask") == [[1, 1], [1, 0, 1]]
    assert [rows for text, rows in result.changes.items() if "rewritten" in text] == [1]


@WRITERS
def test_several_samples_of_a_call_are_rows_of_one_group(tmp_path, write):
    nothing = dict.fromkeys(("iteration", "group_idx", "traj_idx", "split", "purpose"))
    calls = [
        call([1], ([2], [-0.5]), ([3], [-0.25]), seq=7, scope=nothing),
        call([1, 2], ([4], [-1.0]), seq=8, scope=nothing),
    ]
    result = rows_of(TINKER, write(tmp_path, calls))
    assert result.column("response_ids") == [[2], [3], [4]]
    groups = result.column("group_id")
    assert groups[0] == groups[1] != groups[2]
    assert "step" not in result.rows[0]


@WRITERS
def test_a_turn_continues_one_of_several_samples(tmp_path, write):
    calls = [
        call([1], ([2], [-0.5]), ([3], [-0.25]), seq=1),
        call([1, 3, 4], ([5], [-1.0]), seq=2),
    ]
    result = rows_of(TINKER, write(tmp_path, calls))
    assert result.column("response_ids") == [[2], [3, 4, 5]]


@WRITERS
def test_the_newest_attempt_of_each_run_is_read(tmp_path, write):
    calls = [
        call([1], ([2], [-0.5]), scope={"run_attempt": 1}),
        call([1], ([3], [-0.5]), seq=2, scope={"run_attempt": 2}),
        call([1], ([4], [-0.5]), seq=3, scope={"run_attempt": None}),
        call([1], ([5], [-0.5]), seq=4, scope={"run_id": "other", "run_attempt": None}),
    ]
    result = rows_of(TINKER, write(tmp_path, calls))
    assert sorted(result.column("response_ids")) == [[3], [5]]
    assert list(result.changes.values()) == [2]


@WRITERS
def test_iterations_are_in_order_as_numbers(tmp_path, write):
    calls = [
        call([1], ([step], [-0.5]), seq=step, scope={"iteration": step}) for step in (10, 9, 2)
    ]
    assert rows_of(TINKER, write(tmp_path, calls)).column("step") == [2, 9, 10]


@WRITERS
def test_parameters_that_differ_between_calls_of_a_row_are_unknown(tmp_path, write):
    second = call([1, 2, 3], ([4], [-0.5]), seq=2, model_path="tinker://weights/5")
    second["sampling_params"]["temperature"] = 1.0
    second["samples"][0]["stop_reason"] = "length"
    result = rows_of(TINKER, write(tmp_path, [call([1], ([2], [-0.5])), second]))
    (row,) = result.rows
    assert "temperature" not in row
    assert "model_path" not in row
    assert row["top_p"] == 1.0
    assert row["finish_reason"] == "length"


@WRITERS
def test_a_prompt_that_is_not_a_list_of_tokens(tmp_path, write):
    result = rows_of(TINKER, write(tmp_path, [call(None, ([2], [-0.5]))]))
    assert "prompt_ids" not in result.rows[0]
    assert result.rows[0]["response_ids"] == [2]


@WRITERS
def test_missing_log_probs_of_a_turn_are_not_invented(tmp_path, write):
    calls = [call([1], ([2], [-0.5])), call([1, 2, 3], ([4], None), seq=2)]
    (row,) = rows_of(TINKER, write(tmp_path, calls)).rows
    assert row["response_ids"] == [2, 3, 4]
    assert "rollout_log_probs" not in row


def test_calls_that_failed_have_no_samples(tmp_path):
    calls = [
        call([1], status="error", samples=None, error="x"),
        call([1], ([2], [-0.5]), seq=2),
        call([1], ([], []), seq=3),
    ]
    result = rows_of(TINKER, write_jsonl(tmp_path, calls))
    assert result.column("response_ids") == [[2]]
    assert sorted(result.changes.values()) == [1, 1]


def test_a_store_with_a_write_ahead_log(tmp_path):
    file = write_store(tmp_path, [call([1], ([2], [-0.5]))])
    writer = sqlite3.connect(file)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("UPDATE wire_rows SET sampled_tokens = '[5]'")
    writer.commit()
    assert (tmp_path / "capture.sqlite-wal").stat().st_size
    assert rows_of(TINKER, file).column("response_ids") == [[5]]
    writer.close()


def test_a_store_whose_table_is_only_in_the_write_ahead_log(tmp_path):
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    copy.mkdir()
    setting = sqlite3.connect(original / "capture.sqlite")
    setting.execute("PRAGMA journal_mode = WAL")
    setting.execute(
        "SELECT * FROM sqlite_master"
    ).fetchall()  # the log exists while the database is open
    store = write_store(original, [call([1], ([2], [-0.5]))])
    assert b"wire_rows" not in store.read_bytes()
    for name in ("capture.sqlite", "capture.sqlite-wal"):
        shutil.copy(original / name, copy)
    setting.close()
    assert rows_of(TINKER, copy / "capture.sqlite").column("response_ids") == [[2]]


def test_reading_does_not_change_the_folder(tmp_path):
    file = write_store(tmp_path, [call([1], ([2], [-0.5]))])
    before = file.read_bytes()
    rows_of(TINKER, file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["capture.sqlite"]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("sampled_tokens", "[5", "wire_rows 1, sampled_tokens: not valid JSON"),
        ("sampled_tokens", '["5"]', "wire_rows 1, sampled_tokens: `[0]`: expected int, got str"),
        ("sampled_tokens", 7.5, "wire_rows 1, sampled_tokens"),
        ("logprobs", "[-0.5, -0.5]", "`logprobs` has 2 values, `tokens` has 1"),
        ("logprobs", "[[-0.5]]", "wire_rows 1, logprobs: `[0]`: expected float, got array"),
        ("prompt_tokens", "[4294967296]", "wire_rows 1, prompt_tokens: `[0]`: expected int <="),
        ("metadata", "[" * 100_000, "wire_rows 1, metadata"),
        ("metadata", b"\xff\xfe", "wire_rows 1, metadata: not valid JSON"),
        ("iteration", "four", "wire_rows 1: Expected int | null, got str - at $.iteration"),
        ("run_id", 3.5, "Expected str | null, got float - at $.run_id"),
    ],
)
def test_broken_stores_are_refused(tmp_path, column, value, message):
    file = write_store(tmp_path, [call([1], ([2], [-0.5]))])
    connection = sqlite3.connect(file)
    connection.execute(f"UPDATE wire_rows SET {column} = ?", [value])
    connection.commit()
    connection.close()
    assert message in refusal(TINKER, file)


def test_a_damaged_store_is_refused(tmp_path):
    file = write_store(tmp_path, [call([1], ([2], [-0.5]))] * 50)
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(RcdiagError, match="the SQLite store cannot be read"):
        list(TINKER.read(Dump(files=(file,))))


def test_a_store_with_any_byte_changed_is_read_or_refused(tmp_path):
    """Some damage makes SQLite return bytes that are not text, or name missing rows."""
    whole = write_store(tmp_path, [call([1], ([2], [-0.5]), seq=seq) for seq in range(5)])
    content, file, told = whole.read_bytes(), tmp_path / "damaged.sqlite", []
    used = [place for place, byte in enumerate(content) if byte]
    for place in used:
        damaged = bytearray(content)
        damaged[place] ^= 0x81
        file.write_bytes(damaged)
        try:
            assert TINKER.detect(Peek(file)) in (True, False)
            list(TINKER.read(Dump(files=(file,))))
        except RcdiagError as error:
            told.append(error.message if error.hint else "without a hint")
    assert "without a hint" not in told
    assert any("cannot be found" in message for message in told)
    assert any("cannot be read" in message for message in told)


@pytest.mark.parametrize(
    "made",
    [
        "CREATE VIEW wire_rows AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) "
        "SELECT i AS cursor FROM n",
        "CREATE TABLE other (a)",
    ],
)
def test_another_sqlite_file_is_not_taken_for_tinker(tmp_path, made):
    file = tmp_path / "capture.sqlite"
    connection = sqlite3.connect(file)
    connection.execute(made)
    connection.commit()
    connection.close()
    assert not TINKER.detect(Peek(file))
    with pytest.raises(RcdiagError, match="without a table `wire_rows`"):
        list(TINKER.read(Dump(files=(file,))))


def test_a_table_with_other_columns_is_refused(tmp_path):
    file = tmp_path / "capture.sqlite"
    connection = sqlite3.connect(file)
    names = "run_id, run_attempt, split, iteration, group_idx, traj_idx, purpose"
    connection.execute(f"CREATE TABLE wire_rows (cursor, {names})")
    connection.execute("INSERT INTO wire_rows (cursor) VALUES ('first')")
    connection.commit()
    connection.close()
    assert "a `cursor` of wire_rows is not a whole number" in refusal(TINKER, file)
    connection = sqlite3.connect(file)
    connection.execute("UPDATE wire_rows SET cursor = 1")
    connection.commit()
    connection.close()
    assert "the SQLite store cannot be read (no such column" in refusal(TINKER, file)


def test_a_last_line_that_is_cut_off(tmp_path):
    file = write_jsonl(tmp_path, [call([1], ([2], [-0.5])), call([1], ([2], [-0.5]))])
    file.write_text(file.read_text()[:-20])
    assert "line 2: the last line is cut off" in refusal(TINKER, file)


def test_a_compressed_file_of_calls_must_be_unpacked(tmp_path):
    file = write_jsonl(tmp_path, [call([1], ([2], [-0.5]))])
    file.with_name("sample.jsonl.gz").write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()
    with pytest.raises(RcdiagError, match="a compressed file of calls") as caught:
        open_table(tmp_path)
    assert "decompress it" in caught.value.hint
