"""Parquet behind a URL is read in place, by ranges, without showing secrets."""

from __future__ import annotations

import json
import pickle
import shlex
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.exceptions import FSTimeoutError

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.table.remote import RemoteFile, not_readable
from rcdiag.url_secrets import without_secrets
from tests.builders import write_table

ROWS = 4000


@pytest.fixture
def fetched(memory, monkeypatch) -> list[tuple[str, int]]:
    """Record the fetched ranges: path and bytes."""
    ranges: list[tuple[str, int]] = []
    fetch = type(memory).cat_file

    def cat_file(self, path, start=None, end=None, **more):
        content = fetch(self, path, start=start, end=end, **more)
        ranges.append((path, len(content)))
        return content

    monkeypatch.setattr(type(memory), "cat_file", cat_file)
    return ranges


@pytest.fixture
def large(memory, tmp_path):
    """A table of several row groups, with a wide column that no metric uses."""
    generator = np.random.default_rng(3)
    lengths = generator.integers(5, 15, ROWS)
    tokens = [generator.integers(0, 9, n).tolist() for n in lengths]
    behavior = [(-generator.random(n)).tolist() for n in lengths]
    target = [(-generator.random(n)).tolist() for n in lengths]
    path = tmp_path / "large.parquet"
    columns = {
        "response_ids": pa.array(tokens, pa.list_(pa.int32())),
        "rollout_log_probs": behavior,
        "old_log_probs": target,
        "picture": [generator.bytes(1000) for _ in range(ROWS)],
    }
    pq.write_table(pa.table(columns), path, row_group_size=1000)
    memory.pipe("/run/large.parquet", path.read_bytes())
    return path


def document(result: Any) -> dict[str, Any]:
    content = json.loads(result.to_json())
    del content["provenance"], content["diagnosis"]
    return content


def test_only_the_columns_that_are_read_are_fetched(memory, fetched, large):
    remote = rcdiag.score("memory://run/large.parquet", include_text=False)
    whole = large.stat().st_size
    assert document(remote) == document(rcdiag.score(large, include_text=False))
    assert remote.provenance["dump"] == ["memory:///run/large.parquet"]
    assert max(size for _, size in fetched) < whole / 4, "the file was fetched whole"


def test_a_range_of_rows_fetches_only_its_row_groups(memory, fetched, large):
    table = rcdiag.open_table("memory://run/large.parquet")
    fetched.clear()
    rows = list(table.batches(["picture"], np.arange(1500, 1600)))
    assert sum(batch.table.num_rows for batch in rows) == 100
    sizes = sum(size for _, size in fetched)
    assert 1000 * 1000 < sizes < 2 * 1000 * 1000


def test_the_footer_is_fetched_once(memory, fetched, large):
    table = rcdiag.open_table("memory://run/large.parquet")
    fetched.clear()
    assert len(table.row_groups()) >= 1
    assert table.response_tokens > ROWS
    assert table.fingerprint
    assert all(size <= 4 for _, size in fetched), fetched


def test_a_folder_of_parquet_is_one_table_in_the_order_of_numbers(memory, tmp_path):
    for step in (10, 9):
        path = write_table(tmp_path / f"{step}.parquet", response_ids=[[step]])
        memory.pipe(f"/run/step_{step}.parquet", path.read_bytes())
    memory.pipe("/run/.hidden/step_1.parquet", path.read_bytes())
    table = rcdiag.open_table("memory://run")
    assert [str(file.source.path) for file in table.files] == [
        "memory:///run/step_9.parquet",
        "memory:///run/step_10.parquet",
    ]
    assert table.where(1) == "memory:///run/step_10.parquet, row 0"


def test_another_process_reads_the_same_version_of_an_object(memory, large):
    table = rcdiag.open_table("memory://run/large.parquet")
    sent = pickle.loads(pickle.dumps(table.for_workers()))
    assert sum(batch.table.num_rows for batch in sent.batches(["response_ids"])) == ROWS
    memory.pipe("/run/large.parquet", large.read_bytes())
    with pytest.raises(RcdiagError, match="was overwritten while it was read"):
        list(sent.batches(["response_ids"]))


def test_an_object_that_shrinks_while_it_is_read_is_an_error(memory, large):
    table = rcdiag.open_table("memory://run/large.parquet")
    memory.pipe("/run/large.parquet", large.read_bytes()[:1000])
    with pytest.raises(RcdiagError, match="bytes where") as caught:
        list(table.batches())
    assert "changed while it was read" in caught.value.hint


def test_an_object_that_changed_until_the_end_is_an_error(memory, large):
    table = rcdiag.open_table("memory://run/large.parquet")
    batches = table.batches()
    memory.pipe("/run/large.parquet", large.read_bytes())
    with pytest.raises(RcdiagError, match="was overwritten while it was read"):
        list(batches)


def test_a_broken_connection_names_the_url_with_a_hint(memory, large, monkeypatch):
    table = rcdiag.open_table("memory://run/large.parquet")

    def broken(*args: object, **keywords: object) -> None:
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(type(memory), "cat_file", broken)
    with pytest.raises(
        RcdiagError, match=r"^memory:///run/large\.parquet: cannot be read"
    ) as caught:
        list(table.batches())
    assert "credentials" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:secret@bucket/a.parquet", "s3://bucket/a.parquet"),
        ("https://u:p@host/a?X-Amz-Signature=abc&x=1 is gone", "https://host/a is gone"),
        ("see https://host/a.parquet?sig=abc, then", "see https://host/a.parquet, then"),
        ("https://u:p@host/a#frag", "https://host/a"),
        ("https:/u:p@host/a?sig=1 is gone", "https:/host/a is gone"),
        ("s3://k:s@ecret@bucket/a", "s3://bucket/a"),
        ("s3://k:s/e cret@bucket/a", "s3://bucket/a"),
        ("http://k:/@:/@bucket/a", "http://bucket/a"),
        ("http://token@host/a", "http://host/a"),
        ("az://box/a.parquet?sv=1&sig=abc", "az://box/a.parquet"),
        ("zip://*.jsonl::http://u:p@host/a.zip?sig=1", "zip://*.jsonl::http://host/a.zip"),
        ("http://u:p@one/a and http://v:q@two/b", "http://one/a and http://two/b"),
        ("http://host:8080/a: write to a@b", "http://host:8080/a: write to a@b"),
        ("http://[::1]:80/a", "http://[::1]:80/a"),
        ("hf://datasets/user/run@main/a.parquet", "hf://datasets/user/run@main/a.parquet"),
        ("s3://bucket/step_?.parquet", "s3://bucket/step_?.parquet"),
        ("a@b.c, 1 ? 2 : 3", "a@b.c, 1 ? 2 : 3"),
    ],
)
def test_secrets_of_a_url_are_left_out(text, shown):
    assert without_secrets(text) == shown


def test_no_secret_is_in_a_result_or_an_error(memory, large, monkeypatch):
    url = "memory://user:pass@run/large.parquet"
    monkeypatch.setattr(sys, "argv", ["rcdiag", *shlex.split(f"score {url}")])
    result = rcdiag.score("memory://run/large.parquet", include_text=False)
    assert "pass" not in result.provenance["command"]
    with pytest.raises(RcdiagError) as caught:
        rcdiag.score("https://user:pass@127.0.0.1:1/a.parquet?X-Amz-Signature=abc")
    error = caught.value
    assert "127.0.0.1:1/a.parquet" in error.message
    for secret in ("pass", "abc"):
        assert secret not in error.message + error.hint + str(error.args)


def test_a_signed_object_is_read_in_place(memory, large):
    memory.pipe("/run/large.parquet?sig=abc", large.read_bytes())
    table = rcdiag.open_table("memory://run/large.parquet?sig=abc")
    assert isinstance(table.files[0].source.path, RemoteFile)
    assert table.where(1) == "memory:///run/large.parquet, row 1"


def test_a_server_that_does_not_answer_is_said_to_be_silent():
    error = not_readable("http://host/a.parquet", FSTimeoutError())
    assert "(FSTimeoutError: the server did not answer in time)" in error.message


def test_a_remote_file_shows_its_url_without_secrets():
    class System:
        def unstrip_protocol(self, path: str) -> str:
            return f"https://user:pass@host/{path}?sig=abc"

    file = RemoteFile(System(), "run/a.parquet", 3, "")
    assert (str(file), file.name, file.suffix) == (
        "https://host/run/a.parquet",
        "a.parquet",
        ".parquet",
    )
    assert "pass" not in repr(file)
