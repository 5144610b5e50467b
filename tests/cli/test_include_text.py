"""Text of tokens is shown, escaped, if a tokenizer is found and `--no-text` is not given."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from tests.cli.conftest import dump_with_shift

# Its responses contain <call>...</call>, which a page must escape.
TABLE, POLICY = Path("sample_data/multi_turn.parquet"), Path("sample_data/policy/step_8")


def texts(document: dict) -> list[str]:
    words = [token["text"] for token in document["worst_tokens"] if "text" in token]
    words += [item["text"] for item in document["worst_token_ids"] if item["text"]]
    some = [*document["worst_sequences"], *document["drawn_sequences"]]
    return words + [text for item in some for text in item["texts"] or []]


def contexts(document: dict) -> list[dict]:
    return [
        item["context"] for item in (*document["worst_sequences"], *document["drawn_sequences"])
    ]


def test_no_text_leaves_out_all_text(rcdiag, tmp_path):
    page, result = tmp_path / "page.html", tmp_path / "result.json"
    assert rcdiag("score", TABLE, "-q", "--no-text", "--html", page, "--result", result).code == 0
    document = json.loads(result.read_text())
    assert texts(document) == []
    for context in contexts(document):
        for name in ("prompt_texts", "masked_texts", "prompt", "response"):
            assert context[name] is None
        assert context["prompt_ids"]
    html = page.read_text()
    assert "holds token ids, no text" in html
    assert "call&gt;" not in html
    assert "Answer" not in html


@pytest.mark.parametrize("options", [(), ("--include-text",), ("--model", POLICY)])
def test_text_is_shown_escaped_if_a_tokenizer_is_found(rcdiag, tmp_path, options):
    page, result = tmp_path / "page.html", tmp_path / "result.json"
    assert rcdiag("score", TABLE, "-q", *options, "--html", page, "--result", result).code == 0
    document = json.loads(result.read_text())
    assert all(token["text"] for token in document["worst_tokens"])
    sequence = document["worst_sequences"][0]
    assert len(sequence["texts"]) == len(sequence["token_ids"]) == len(sequence["log_ratio"])
    assert "<call>" in "".join(sequence["texts"])
    context = sequence["context"]
    assert len(context["prompt_texts"]) == len(context["prompt_ids"])
    assert "<result>" in "".join(context["masked_texts"])
    html = page.read_text()
    drawn = len(document["drawn_sequences"])
    assert drawn
    assert f"holds text of {30 + drawn} responses" in html
    assert "&lt;call&gt;" in html
    assert "<call>" not in html


def test_text_columns_are_shown_if_no_tokenizer_is_found(rcdiag, tmp_path, monkeypatch):
    result = tmp_path / "result.json"
    table = TABLE.resolve()
    monkeypatch.chdir(tmp_path)  # the model that the table names does not exist here
    assert rcdiag("score", table, "-q", "--result", result).code == 0
    document = json.loads(result.read_text())
    assert texts(document) == []
    stored = pl.read_parquet(table)
    for item in document["worst_sequences"]:
        assert item["context"]["response"] == stored["response"][item["row"]]
        assert item["context"]["prompt"] == stored["prompt"][item["row"]]


def test_the_context_is_that_of_the_row(rcdiag, tmp_path):
    result = tmp_path / "result.json"
    assert rcdiag("score", TABLE, "-q", "--result", result).code == 0
    stored = pl.read_parquet(TABLE)
    for item in json.loads(result.read_text())["worst_sequences"]:
        row = stored.row(item["row"], named=True)
        context = item["context"]
        assert context["prompt_length"] == len(row["prompt_ids"])
        assert context["prompt_ids"] == row["prompt_ids"][-100:]
        masked = [place for place, one in enumerate(row["response_mask"]) if not one]
        assert context["masked_positions"] == masked
        assert context["masked_ids"] == [row["response_ids"][place] for place in masked]


def test_include_text_without_a_tokenizer_is_an_error_with_a_hint(rcdiag, tmp_path):
    ran = rcdiag("score", dump_with_shift(tmp_path / "a.parquet", 0.01), "--include-text")
    ran.refuses("--include-text", "--model PATH")


def test_a_folder_without_a_tokenizer_is_an_error(rcdiag, tmp_path):
    table = dump_with_shift(tmp_path / "a.parquet", 0.01)
    (tmp_path / "model").mkdir()
    ran = rcdiag("score", table, "--include-text", "--model", tmp_path / "model")
    ran.refuses()


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_a_missing_tokenizer_is_an_error_before_an_engine_starts(
    rcdiag, tmp_path, monkeypatch, dry_run
):
    def start(*_: object) -> None:
        raise AssertionError("an engine starts")

    monkeypatch.setattr("rcdiag.engines.process.EngineProcess", start)
    bare = tmp_path / "bare"
    shutil.copytree(POLICY, bare, ignore=shutil.ignore_patterns("tokenizer*"))
    options = ("--policy", "a=hf:float32", "--policy", "b=hf:bfloat16", "--model", bare)
    pair = ("--behavior", "a", "--target", "b", "--include-text")
    ran = rcdiag("score", TABLE, *options, *pair, *dry_run)
    ran.refuses(f"error: model {bare}: no tokenizer in the folder", "--model")
