"""Text of tokens: only when asked for, and escaped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import dump_with_shift

# Its responses hold <call>...</call>, which no page may hold as a tag.
TABLE, POLICY = Path("sample_data/multi_turn.parquet"), Path("sample_data/policy/step_8")


def texts(document: dict) -> list[str]:
    words = [token["text"] for token in document["worst_tokens"] if "text" in token]
    words += [item["text"] for item in document["worst_token_ids"] if item["text"]]
    return words + [text for item in document["worst_sequences"] for text in item["texts"] or []]


def test_without_the_option_no_text_is_kept(rcdiag, tmp_path):
    page, result = tmp_path / "page.html", tmp_path / "result.json"
    assert rcdiag("score", TABLE, "-q", "--html", page, "--result", result).code == 0
    assert texts(json.loads(result.read_text())) == []
    assert "call&gt;" not in page.read_text()
    assert "Answer" not in page.read_text()


@pytest.mark.parametrize("model", [(), ("--model", POLICY)])
def test_text_is_shown_on_request_and_escaped(rcdiag, tmp_path, model):
    page, result = tmp_path / "page.html", tmp_path / "result.json"
    options = ("--include-text", "--html", page, "--result", result, *model)
    assert rcdiag("score", TABLE, "-q", *options).code == 0
    document = json.loads(result.read_text())
    assert all(token["text"] for token in document["worst_tokens"])
    sequence = document["worst_sequences"][0]
    assert len(sequence["texts"]) == len(sequence["token_ids"]) == len(sequence["log_ratio"])
    assert "<call>" in "".join(sequence["texts"])
    html = page.read_text()
    assert "&lt;call&gt;" in html
    assert "<call>" not in html


def test_without_a_model_to_ask_it_is_an_error_with_a_way_out(rcdiag, tmp_path):
    ran = rcdiag("score", dump_with_shift(tmp_path / "a.parquet", 0.01), "--include-text")
    assert ran.code == 2
    assert "--include-text" in ran.err
    assert "--model PATH" in ran.err


def test_a_folder_without_a_tokenizer_is_an_error(rcdiag, tmp_path):
    table = dump_with_shift(tmp_path / "a.parquet", 0.01)
    (tmp_path / "model").mkdir()
    ran = rcdiag("score", table, "--include-text", "--model", tmp_path / "model")
    assert ran.code == 2
    assert "error: " in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_a_missing_tokenizer_is_told_before_an_engine_starts(
    rcdiag, tmp_path, monkeypatch, dry_run
):
    def start(*_: object) -> None:
        raise AssertionError("an engine starts")

    monkeypatch.setattr("rcdiag.runners.local.EngineProcess", start)
    bare = tmp_path / "bare"
    shutil.copytree(POLICY, bare, ignore=shutil.ignore_patterns("tokenizer*"))
    options = ("--policy", "a=hf:float32", "--policy", "b=hf:bfloat16", "--model", bare)
    pair = ("--behavior", "a", "--target", "b", "--include-text")
    ran = rcdiag("score", TABLE, *options, *pair, *dry_run)
    assert ran.code == 2
    assert f"error: model {bare}: no tokenizer in the folder" in ran.err
    assert "--model" in ran.err
