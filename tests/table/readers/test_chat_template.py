"""Prompts of later turns are compared with the chat template if the dump has messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rcdiag
from rcdiag import RcdiagError
from rcdiag.table.readers.chat_template import ADDED, AGREE, LOST, OTHER
from tests.table.readers import test_rllm as rllm
from tests.table.readers.rows_of import drawn_floats, write_lines
from tools.docs.commands import ROOT

pytestmark = pytest.mark.engine  # slow: transformers loads the tokenizer

POLICY = ROOT / "sample_data" / "policy" / "step_8"
END, NEWLINE = "<|end|>", "\n"
# Like Qwen's: a newline between two messages. Tools of a request precede them.
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'unknown' %}{{ raise_exception('no such role') }}{% endif %}"
    "<|{{ 'assistant' if m.role == 'assistant' else 'user' }}|>{{ m.content }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(POLICY)


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(made)
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


def episode(tokenizer, *, behind: str = NEWLINE, turns: int = 3, before: str = "") -> dict:
    """Return an episode whose agent loop appends `behind` after a sampled turn."""

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    rng = np.random.default_rng(turns)
    messages = [{"role": "user", "content": "2 + 3 ="}]
    prompt = ids(f"{before}<|user|>2 + 3 ={END}{NEWLINE}<|assistant|>")
    steps = []
    for turn in range(turns):
        answer = f"<call>{turn}</call>"
        sampled = ids(answer + END)
        chat = [*messages, {"role": "assistant", "content": answer}]
        steps.append(
            rllm.step(prompt, sampled, drawn_floats(rng, len(sampled)), chat_completions=chat)
        )
        result = f"<result>{turn}</result>"
        messages = [*chat, {"role": "tool", "content": result}]
        prompt = prompt + sampled + ids(f"{behind}<|user|>{result}{END}{NEWLINE}<|assistant|>")
    return rllm.episode(*steps)


def converted(tmp_path: Path, folder: Path, *episodes: dict) -> tuple[dict, dict]:
    source = write_lines(tmp_path / "episodes.jsonl", episodes)
    return read(source, tmp_path, folder)


def read(source: Path, tmp_path: Path, folder: Path) -> tuple[dict, dict]:
    out = tmp_path / "out.parquet"
    rcdiag.convert(source, out, tokenizer=str(folder), force=True)
    metadata = rcdiag.open_table(out).metadata
    return metadata["chat_template"], metadata["conversion"]["changes"]


@pytest.mark.parametrize(
    ("behind", "kind"),
    [
        (NEWLINE, AGREE),
        ("", LOST),
        (NEWLINE + NEWLINE, ADDED),
        (END + NEWLINE, ADDED),
        ("!!", OTHER),
    ],
)
def test_tokens_between_turns_are_compared_with_the_template(
    tmp_path, folder, tokenizer, behind, kind
):
    whole = episode(tokenizer, behind=behind)
    facts, changes = converted(tmp_path, folder, whole, whole)
    assert changes[kind] == 4
    assert facts["boundaries"] == 4
    assert facts["rows"] == 2
    counted = {"lost": 4 * (kind == LOST), "added": 4 * (kind == ADDED)}
    assert {name: facts[name] for name in counted} == counted
    assert facts["rows_off"] == (2 if kind in (LOST, ADDED) else 0)
    if kind == LOST:
        assert tokenizer.decode(facts["token"]) == NEWLINE


def test_the_beginning_of_the_prompt_may_differ(tmp_path, folder, tokenizer):
    """For example if the tools of a request are in the prompt, but not in the dump."""
    facts, changes = converted(tmp_path, folder, episode(tokenizer, before="tools: calculator"))
    assert changes[AGREE] == 2
    facts, _ = converted(tmp_path, folder, episode(tokenizer, before="tools", behind=""))
    assert facts["lost"] == 2


def test_a_diagnosis_reads_it(tmp_path, folder, tokenizer):
    source = write_lines(
        tmp_path / "episodes.jsonl", [episode(tokenizer, behind="", turns=3 + k) for k in range(8)]
    )
    out = tmp_path / "out.parquet"
    rcdiag.convert(source, out, tokenizer=str(folder))
    assert rcdiag.diagnose(out).diagnosis.causes[0].slug == "turn-boundary"


def test_messages_that_the_template_rejects(tmp_path, folder, tokenizer):
    whole = episode(tokenizer)
    for step in whole["trajectories"][0]["steps"]:
        step["chat_completions"][0] = {"role": "unknown", "content": ""}
    _, changes = converted(tmp_path, folder, whole)
    assert changes[OTHER] == 2


def test_a_dump_without_messages_is_not_compared(tmp_path, folder, tokenizer):
    whole = episode(tokenizer)
    for step in whole["trajectories"][0]["steps"]:
        step["chat_completions"] = []
    facts, _ = converted(tmp_path, folder, whole)
    assert facts["boundaries"] == 0


def test_a_tokenizer_without_a_template(tmp_path, tokenizer):
    with pytest.raises(RcdiagError, match="the tokenizer has no chat template"):
        converted(tmp_path, POLICY, episode(tokenizer))


def of_gym(whole: dict) -> dict:
    """Write an episode as NeMo-Gym does: the items of a call, then the tool's item."""
    output = []
    for step in whole["trajectories"][0]["steps"]:
        asked, answer = step["chat_completions"][:-1], step["chat_completions"][-1]
        if output:
            output.append({"type": "function_call_output", "output": asked[-1]["content"]})
        output.append({"type": "reasoning", "summary": []})
        output.append(
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": answer["content"]}],
                "prompt_token_ids": step["prompt_ids"],
                "generation_token_ids": step["response_ids"],
                "generation_log_probs": step["logprobs"],
            }
        )
    first = whole["trajectories"][0]["steps"][0]["chat_completions"][0]["content"]
    return {
        "responses_create_params": {"input": first},
        "response": {"object": "response", "output": output},
        "_ng_task_index": 0,
    }


def of_atif(whole: dict) -> dict:
    """Write an episode as a Harbor trajectory, in which observations belong to their step."""
    steps = [{"source": "user", "message": "2 + 3 ="}]
    for step in whole["trajectories"][0]["steps"]:
        chat = step["chat_completions"]
        if len(steps) > 1:
            steps[-1]["observation"] = {"results": [{"content": chat[-2]["content"]}]}
        metrics = {
            "prompt_token_ids": step["prompt_ids"],
            "completion_token_ids": step["response_ids"],
            "logprobs": step["logprobs"],
        }
        steps.append({"source": "agent", "message": chat[-1]["content"], "metrics": metrics})
    return {"schema_version": "ATIF-v1.6", "session_id": "1", "steps": steps}


@pytest.mark.parametrize(("behind", "kind"), [(NEWLINE, AGREE), ("", LOST), ("!!", OTHER)])
@pytest.mark.parametrize(
    ("write", "name"), [(of_gym, "rollouts.jsonl"), (of_atif, "trajectory.json")]
)
def test_all_formats_with_messages(tmp_path, folder, tokenizer, write, name, behind, kind):
    source = write_lines(tmp_path / name, [write(episode(tokenizer, behind=behind))])
    facts, changes = read(source, tmp_path, folder)
    assert facts["boundaries"] == changes[kind] == 2
    assert facts["lost"] == 2 * (kind == LOST)
