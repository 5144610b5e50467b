"""Scores are uploaded to a URL when complete, and never lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.files import check_outputs
from rcdiag.table.destination import Destination
from tests.engines.engine_here import scored_parts, toy_scoring

URL = "memory://out/scored.parquet"


@pytest.fixture
def scoring(tmp_path, monkeypatch) -> Iterator[dict[str, Any]]:
    """A function that scores a small table in an empty current folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with toy_scoring(tmp_path) as given:
        yield {**given, "output": URL}


def test_the_table_is_written_to_a_url_without_local_files_left(memory, scoring):
    result = rcdiag.score(**scoring)
    assert list(Path().iterdir()) == []
    again = rcdiag.score(URL)
    assert again.mismatch == result.mismatch
    assert list(memory.store) == ["/out/scored.parquet"]


def test_an_existing_object_is_overwritten_only_with_force(memory, scoring):
    rcdiag.score(**scoring)
    scored_parts.clear()
    with pytest.raises(RcdiagError, match="already there"):
        rcdiag.score(**scoring)
    assert not scored_parts
    rcdiag.score(**scoring, force=True)
    assert scored_parts


def test_a_failed_upload_keeps_the_scores_for_the_same_command(memory, scoring, monkeypatch):
    def refuse(*args: object, **keywords: object) -> None:
        raise PermissionError("no write access: https://u:p@host/x?sig=abc")

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "put_file", refuse)
        with pytest.raises(RcdiagError, match="no write access") as caught:
            rcdiag.score(**scoring)
    assert "the whole table is in scored.parquet.upload" in caught.value.hint
    assert "sig" not in caught.value.message
    assert Path("scored.parquet.upload").exists()
    assert not memory.store
    scored_parts.clear()
    rcdiag.score(**scoring)
    assert not scored_parts, "scored again"
    assert list(memory.store) == ["/out/scored.parquet"]
    assert list(Path().iterdir()) == []


def test_a_dry_run_states_where_the_table_is_written(memory, scoring):
    text = rcdiag.score.dry_run(**scoring)
    assert "would write memory://out/scored.parquet, in scored.parquet.upload first" in text
    assert not memory.store


@pytest.mark.parametrize("url", ["https://host/a.parquet", "hf://datasets/a/b/c.parquet"])
def test_an_unwritable_url_is_refused_before_scoring(scoring, url):
    with pytest.raises(RcdiagError, match="nothing can be written to"):
        rcdiag.score(**{**scoring, "output": url})


def test_a_url_names_a_file_and_shows_no_secret(tmp_path):
    assert str(Destination.of("s3://key:secret@bucket/a.parquet")) == "s3://bucket/a.parquet"
    here = tmp_path / "a.parquet"
    assert Destination.of(here.as_uri()) == Destination(here)
    with pytest.raises(RcdiagError, match="a folder"):
        Destination.of("s3://bucket/run/")


def test_other_outputs_must_be_local_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RcdiagError, match="only the table of rcdiag score -o"):
        check_outputs([Path("s3://bucket/result.json")], force=False)
    with pytest.raises(RcdiagError, match="only the table of rcdiag score -o"):
        rcdiag.convert("nowhere.parquet", "s3://bucket/out.parquet")
