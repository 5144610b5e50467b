"""Dumps of text are refused without a tokenizer; with one, errors of re-encoding are counted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag import RcdiagError
from rcdiag.table.readers import READERS
from tools.docs.commands import ROOT

pytestmark = pytest.mark.engine  # slow: transformers loads the tokenizer

POLICY = ROOT / "sample_data" / "policy" / "step_8"
CHAT = [{"role": "user", "content": "2 + 3 ="}]
TEXT = [reader for reader in READERS.values() if reader.text_only]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(POLICY)


def lines(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def verl(folder: Path) -> Path:
    """Write rows like `_write_generations` of verl 0.9.1."""
    for step in (10, 9):
        rows = [
            {"input": "2 + 3 =", "output": f" {n} five", "gts": None, "score": n / 2, "step": step}
            for n in range(3)
        ]
        lines(folder / f"{step}.jsonl", *rows)
    return folder


def trl(folder: Path) -> Path:
    """Write files like `GRPOTrainer.log` of trl 1.16.0, the second a repetition."""
    folder.mkdir()
    for number, (step, text) in enumerate([(5, " five"), (10, " five"), (15, " six")]):
        table = {
            "step": [step] * 2,
            "prompt": ["2 + 3 ="] * 2,
            "completion": [text, text + " is it"],
            "reward_length": [1.0, 0.0],
            "advantage": [0.5, -0.5],
        }
        name = f"completions_{step:05d}.parquet"
        pq.write_table(pa.table(table), folder / name, row_group_size=number + 1)
    return folder


def areal(folder: Path) -> Path:
    """Write lines like `_dump_trajectory` of AReaL 4aef98d8d, one folder per version."""
    for version in (10, 9):
        record = {"task_id": version, "reward": 1.0, "prompt": "<|user|>2 + 3 =", "prompt_len": 8}
        record |= {"head_version": -1, "tail_version": version, "completion": "5<|end|>"}
        lines(
            folder / str(version) / f"{version}.jsonl",
            {**record, "sample_idx": 0, "seqlen": 10},
            {**record, "sample_idx": 1, "seqlen": 11, "head_version": 3},
        )
    return folder


def xtuner(folder: Path) -> Path:
    """Write a file like `_save_trajectories` of XTuner b934f4620."""
    summary = {"reward_mean": 1.0, "response_len_mean": 2.0, "total_len": 2}
    row = {"rollout_id": 7, "group_id": 3, "status": "completed", "finish_reason": "stop"}
    row |= {"prompt": "2 + 3 =", "label": "5", "response": " 5<|end|>", "reward": 1.0}
    row |= {"prompt_len": 7, "response_len": 3, "agent": {"name": None}, "error_msg": None}
    path = folder / "train_rollout_12.jsonl"
    lines(path, summary, row, {**row, "rollout_id": 8, "response": None})
    return folder


def swift(folder: Path) -> Path:
    """Write lines like `GRPOTrainer.log` of ms-swift 3602360a5 and its Ray trainer."""
    table = {
        "step": ["4", "4"],
        "prompt": ["<|user|>2 + 3 =", "<|user|>1 + 1 ="],
        "completion": [" 5", " 2"],
        "Accuracy": [1.0, 0.0],
        "advantages": [0.5, -0.5],
        "entropy": [0.1, 0.2],
        "solution": ["5", "2"],
    }
    ray = {"gen_step": 6, "prompt": "<|user|>2 + 3 =", "completion": " 5", "reward": 0.25}
    lines(folder / "completions.jsonl", table, {**table, "step": ["5", "5"]}, ray)
    return folder


def art(folder: Path) -> Path:
    """Write files like `write_trajectory_groups_parquet` of openpipe-art 0.5.18."""

    def message(role: str, content: str, trainable: bool) -> dict[str, Any]:
        rest = {"tool_calls": None, "tool_call_id": None}
        return {"role": role, "content": content, "trainable": trainable, **rest}

    shown = message(
        "assistant", "1 + 1 = 2", False
    )  # a few-shot example, not written by the policy
    asked = [message("user", "1 + 1 =", False), shown, message("user", "2 + 3 =", False)]
    answers = [[message("assistant", text, True)] for text in (" 5", " 6")]
    called = {**message("assistant", " 5", True), "tool_calls": '[{"id": "c1"}]'}
    answers.append([called, message("tool", "ok", False), message("assistant", "!", True)])
    answers.append([])
    (folder / "train").mkdir(parents=True)
    for step in (10, 9):
        table = {
            "group_index": [0, 0, 1, 1],
            "reward": [1.0, 0.0, 0.5, 0.0],
            "metrics": ["{}"] * 4,
            "metadata": ["{}"] * 4,
            "tools": [None] * 4,
            "logs": [["a"]] * 4,
            "messages": [asked + answer for answer in answers],
        }
        pq.write_table(pa.table(table), folder / "train" / f"{step:04d}.parquet")
    return folder


DUMPS = {
    "verl-jsonl": verl,
    "trl": trl,
    "areal": areal,
    "xtuner": xtuner,
    "ms-swift": swift,
    "art": art,
}


def test_every_format_of_text_is_tested():
    assert list(DUMPS) == [reader.name for reader in TEXT]


@pytest.fixture(scope="module")
def chatty(tokenizer, tmp_path_factory) -> Path:
    """A copy of the sample policy's tokenizer with a chat template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<|{{ 'user' if m.role != 'assistant' else 'assistant' }}|>"
        "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    return folder


@pytest.fixture(params=list(DUMPS))
def dump(request, tmp_path) -> tuple[str, Path]:
    return request.param, DUMPS[request.param](tmp_path / "dump")


def converted(
    source: Path, tokenizer: Path = POLICY
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Convert a dump; returns rows and metadata of the table."""
    out = source.parent / "out.parquet"
    rcdiag.convert(source, out, tokenizer=str(tokenizer), force=True)
    table = rcdiag.open_table(out)
    return [row for b in table.batches() for row in b.table.to_pylist()], table.metadata


def test_text_alone_is_refused_with_the_option_that_dumps_tokens(dump):
    name, folder = dump
    with pytest.raises(RcdiagError, match=f"{name} dumps hold text, no token ids") as caught:
        rcdiag.open_table(folder)
    (reader,) = [reader for reader in TEXT if reader.name == name]
    assert reader.text_only in caught.value.hint
    assert "tokenizer" in caught.value.hint


def test_with_a_tokenizer_text_becomes_tokens_and_no_log_probs(dump, tokenizer, chatty):
    _, folder = dump
    rows, metadata = converted(folder, chatty)
    assert rows
    for row in rows:
        text = tokenizer.decode(row["response_ids"])
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == row["response_ids"]
        assert not any(name.endswith("_log_probs") for name in row)
    facts = metadata["reencoded"]
    assert facts["rows"] == len(rows)
    assert facts["tokens"] == sum(len(row["response_ids"]) for row in rows)
    assert facts["share_decoding_to_their_text"] == 1.0
    changes = metadata["conversion"]["changes"]
    assert any("encoded again" in change for change in changes)
    assert [n for text, n in changes.items() if "decode to its text" in text] == [len(rows)]
    together = [n for text, n in changes.items() if "as one text than separately" in text]
    assert sum(together) == len(rows) - facts["rows_with_the_same_tokens_together"]


def test_rows_of_verl(tmp_path, tokenizer):
    rows, metadata = converted(verl(tmp_path / "dump"))
    assert [row["step"] for row in rows] == [9] * 3 + [10] * 3
    assert [row["reward"] for row in rows] == [0.0, 0.5, 1.0] * 2
    assert tokenizer.decode(rows[1]["response_ids"]) == " 1 five"
    assert tokenizer.decode(rows[1]["prompt_ids"]) == "2 + 3 ="
    assert len({row["group_id"] for row in rows}) == 2
    assert any("no special tokens" in change for change in metadata["conversion"]["changes"])


def test_fields_of_a_reward_function_are_kept(tmp_path):
    record = {"input": "a", "output": "b", "gts": "7", "score": 1.0, "step": 3}
    added = [
        {"acc": True, "pred": "7", "tool": {"calls": 1}, "reward": 3.0},
        {"acc": 0.5, "pred": None, "request_id": "r1"},
        {"acc": "no"},
    ]
    lines(tmp_path / "dump" / "3.jsonl", *({**record, **extra} for extra in added))
    rows, metadata = converted(tmp_path / "dump")
    assert [row["acc"] for row in rows] == [1.0, 0.5, None]
    assert [row["pred"] for row in rows] == ["7", None, None]
    assert [row["request_id"] for row in rows] == [None, "r1", None]
    assert [row["gts"] for row in rows] == ["7"] * 3
    assert [row["reward"] for row in rows] == [1.0] * 3  # the score
    assert "tool" not in rows[0]
    told = " ".join(metadata["conversion"]["changes"])
    assert "`tool` is left out" in told
    assert "`acc` is text in some records" in told


def test_groups_of_verl_come_from_its_keys(tmp_path):
    record = {"input": "a", "output": "b", "gts": None, "score": 1.0, "step": 3}
    keys = ["p_1_0_0", "p_1_1_0", "q_0_0"]
    lines(tmp_path / "dump" / "3.jsonl", *({**record, "uid": key} for key in keys))
    rows, _ = converted(tmp_path / "dump")
    assert [row["group_id"] for row in rows] == ["p_1", "p_1", "q"]
    assert [row["sample_id"] for row in rows] == keys


def test_repeated_rows_of_trl_are_read_once(tmp_path):
    rows, metadata = converted(trl(tmp_path / "dump"))
    assert [row["step"] for row in rows] == [5, 5, 15, 15]
    assert [row["reward"] for row in rows] == [1.0, 0.0] * 2
    assert [row["advantage"] for row in rows] == [0.5, -0.5] * 2
    repeated = [c for c in metadata["conversion"]["changes"].items() if "repeats" in c[0]]
    assert [count for _, count in repeated] == [2]


def test_several_reward_functions_of_trl_are_columns(tmp_path):
    folder = trl(tmp_path / "dump")
    for path in folder.iterdir():
        table = pq.read_table(path)
        pq.write_table(table.append_column("reward_form", pa.array([0.0, 1.0])), path)
    rows, _ = converted(folder)
    assert "reward" not in rows[0]
    assert (rows[0]["reward_length"], rows[0]["reward_form"]) == (1.0, 0.0)


@pytest.mark.parametrize("turns", [1, 3])
def test_conversations_are_rendered_by_the_chat_template(tmp_path, tokenizer, turns, chatty):
    answer = [{"role": "assistant", "content": " 5"}]
    if turns == 3:
        answer = [
            answer[0],
            {"role": "tool", "content": "ok"},
            {"role": "assistant", "content": "!"},
        ]
    table = {"step": [1], "prompt": [CHAT], "completion": [answer], "r": [1.0], "advantage": [0.0]}
    (tmp_path / "dump").mkdir()
    pq.write_table(pa.table(table), tmp_path / "dump" / "completions_00001.parquet")
    out = tmp_path / "out.parquet"
    rcdiag.convert(tmp_path / "dump", out, tokenizer=str(chatty))
    opened = rcdiag.open_table(out)
    (row,) = [row for b in opened.batches() for row in b.table.to_pylist()]
    assert tokenizer.decode(row["prompt_ids"]) == "<|user|>2 + 3 =<|assistant|>"
    expected = " 5" if turns == 1 else " 5<|user|>ok<|assistant|>!"
    assert tokenizer.decode(row["response_ids"]) == expected
    noted = any("no mask" in change for change in opened.metadata["conversion"]["changes"])
    assert noted is (turns == 3)


def test_conversations_without_a_template_are_refused(tmp_path):
    answer = [{"role": "assistant", "content": " 5"}]
    table = {"step": [1], "prompt": [CHAT], "completion": [answer], "r": [1.0], "advantage": [0.0]}
    (tmp_path / "dump").mkdir()
    pq.write_table(pa.table(table), tmp_path / "dump" / "completions_00001.parquet")
    with pytest.raises(RcdiagError, match="no chat template"):
        converted(tmp_path / "dump")


def test_rows_of_areal(tmp_path, tokenizer):
    rows, metadata = converted(areal(tmp_path / "dump"))
    assert [row["policy_version"] for row in rows] == [9, 9, 10, 10]
    assert [row["group_id"] for row in rows] == ["9", "9", "10", "10"]
    assert rows[0]["response_ids"][-1] == tokenizer.eos_token_id
    assert rows[0]["prompt_ids"][0] == tokenizer.convert_tokens_to_ids("<|user|>")
    # "5<|end|>" is two tokens; the second row of each file counts three.
    facts = metadata["reencoded"]
    assert facts["rows_with_token_count"] == 4
    assert facts["rows_with_the_same_token_count"] == 2
    assert facts["share_with_the_same_token_count"] == 0.5
    assert (facts["tokens_where_counted"], facts["tokens_counted"]) == (8, 10)
    changes = metadata["conversion"]["changes"]
    assert [count for text, count in changes.items() if "Weights changed" in text] == [2]


def test_rows_of_xtuner(tmp_path):
    (row,), metadata = converted(xtuner(tmp_path / "dump"))
    assert (row["step"], row["group_id"], row["sample_id"]) == (12, "3", "7")
    assert (row["finish_reason"], row["reward"]) == ("stop", 1.0)
    changes = metadata["conversion"]["changes"]
    assert [count for text, count in changes.items() if "without a response" in text] == [1]


def test_rows_of_swift(tmp_path):
    rows, metadata = converted(swift(tmp_path / "dump"))
    assert [row["step"] for row in rows] == [4, 4, 6]
    assert [row["reward"] for row in rows] == [1.0, 0.0, 0.25]
    assert [row["advantage"] for row in rows] == [0.5, -0.5, None]
    changes = metadata["conversion"]["changes"]
    assert [count for text, count in changes.items() if "repeats" in text] == [2]


def test_rows_of_art(tmp_path, tokenizer, chatty):
    rows, metadata = converted(art(tmp_path / "dump"), chatty)
    assert [row["step"] for row in rows] == [9] * 3 + [10] * 3
    assert [row["reward"] for row in rows] == [1.0, 0.0, 0.5] * 2
    groups = [row["group_id"] for row in rows]
    assert groups[0] == groups[1]
    assert len(set(groups)) == 4
    assert tokenizer.decode(rows[1]["prompt_ids"]) == (
        "<|user|>1 + 1 =<|assistant|>1 + 1 = 2<|user|>2 + 3 =<|assistant|>"
    )
    assert tokenizer.decode(rows[1]["response_ids"]) == " 6"
    assert tokenizer.decode(rows[2]["response_ids"]) == " 5<|user|>ok<|assistant|>!"
    changes = metadata["conversion"]["changes"]
    assert [count for text, count in changes.items() if "without a trained message" in text] == [2]
    assert [count for text, count in changes.items() if "no mask" in text] == [2]


def test_numbers_of_ms_swift_that_no_column_holds_are_left_out_or_refused(tmp_path, tokenizer):
    line = {"step": ["5"], "prompt": ["2 + 3 ="], "completion": [" 5"], "Exact": [1]}
    lines(tmp_path / "dump" / "completions.jsonl", {**line, "Odd": [2**70]})
    ((row,), _) = converted(tmp_path / "dump")
    assert (row["reward"], row["step"]) == (1.0, 5)
    for step in ("five", "9" * 30):
        lines(tmp_path / "dump" / "completions.jsonl", {**line, "step": [step]})
        with pytest.raises(RcdiagError, match=r"line 1: `step` is '.*', not a whole number"):
            converted(tmp_path / "dump")


def test_empty_groups_of_art_are_left_out_and_json_only_is_refused(tmp_path, chatty):
    """Rows are like those of `write_trajectory_groups_parquet` of openpipe-art 0.5.23."""
    path = art(tmp_path / "dump") / "train" / "0009.parquet"
    rows = [{"format_version": 2, "trajectory_json": "{}", **row} for row in
            pq.read_table(path).to_pylist()]  # fmt: skip
    rows[1] |= dict.fromkeys(("messages", "trajectory_json", "reward"))
    pq.write_table(pa.Table.from_pylist(rows), path)
    made, metadata = converted(tmp_path / "dump", chatty)
    assert [row["reward"] for row in made] == [1.0, 0.5, 1.0, 0.0, 0.5]
    changes = metadata["conversion"]["changes"]
    assert [count for text, count in changes.items() if "without any trajectory" in text] == [1]
    rows[1]["trajectory_json"] = '{"exchanges": []}'
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(RcdiagError, match=r"0009\.parquet, row 1: .* `trajectory_json`"):
        converted(tmp_path / "dump", chatty)


def test_tool_calls_of_art_that_are_invalid_json_are_named(tmp_path, chatty):
    path = art(tmp_path / "dump") / "train" / "0009.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[2]["messages"][3]["tool_calls"] = "[{"
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(RcdiagError, match=r"0009\.parquet, row 2: `tool_calls`"):
        converted(tmp_path / "dump", chatty)


def test_text_that_no_tokens_decode_to_is_counted(tmp_path, tokenizer):
    """Bytes that were not valid text when decoded are lost."""
    records: Sequence[dict[str, Any]] = [
        {"input": "a", "output": output, "gts": None, "score": 1.0, "step": 1}
        for output in (" five", "\N{REPLACEMENT CHARACTER}", "\N{SNOWMAN}")
    ]
    lines(tmp_path / "dump" / "1.jsonl", *records)
    _, metadata = converted(tmp_path / "dump")
    texts = [record["output"] for record in records]
    same = [tokenizer.decode(tokenizer(text)["input_ids"]) == text for text in texts]
    facts = metadata["reencoded"]
    assert facts["rows_decoding_to_their_text"] == sum(same)
    assert facts["rows_with_lost_bytes"] == 1
    changes = metadata["conversion"]["changes"]
    assert [rows for text, rows in changes.items() if "replacement character" in text] == [1]


def test_responses_encoded_differently_with_their_prompt_are_counted(tmp_path, tokenizer):
    prompt, answer = "ripe toma", "toes"
    ids = [tokenizer(text)["input_ids"] for text in (prompt, answer, prompt + answer)]
    assert ids[0] + ids[1] != ids[2]
    record = {"input": prompt, "output": answer, "gts": None, "score": 1.0, "step": 1}
    lines(tmp_path / "dump" / "1.jsonl", record)
    _, metadata = converted(tmp_path / "dump")
    assert metadata["reencoded"]["rows_with_the_same_tokens_together"] == 0


@pytest.mark.parametrize("folder", ["none", "empty"])
def test_a_tokenizer_that_cannot_be_loaded_is_named(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    source = verl(tmp_path / "dump")
    with pytest.raises(RcdiagError, match="tokenizer") as caught:
        rcdiag.convert(source, tmp_path / "out.parquet", tokenizer=str(tmp_path / folder))
    assert folder in caught.value.message
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"completion": [" 5"]}, "line 1: `completion` has 1 values, `prompt` has 2"),
        ({"completion": [[1], [2]]}, r"line 1: `completion\[0\]` is list, not text"),
        ({"prompt": 5}, "line 1: "),
    ],
)
def test_lines_of_swift_that_do_not_fit_are_named(tmp_path, change, message):
    path = swift(tmp_path / "dump") / "completions.jsonl"
    record = {**json.loads(path.read_text().splitlines()[0]), **change}
    lines(path, record)
    with pytest.raises(RcdiagError, match=message):
        converted(tmp_path / "dump")
