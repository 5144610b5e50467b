"""Logs of text written by the trainers' own code from their published wheels.

The texts are decoded tokens of the sample policy, so that each log can be compared with what its
trainer was given.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from packaging import version

import rcdiag
from tests.oracle.published import bare_class, functions, module
from tests.table.readers.rollouts import assert_rows, read
from tools.docs.commands import ROOT

pytestmark = pytest.mark.oracle

POLICY = str(ROOT / "sample_data" / "policy" / "step_8")
PROMPTS = ["2 + 3 =", "2 + 3 =", "10 - 4 =", "10 - 4 ="]
ANSWERS = [" five", " 5", "", " six. é"]
REWARDS = [1.0, 0.0, 0.5, -1.25]
ADVANTAGES = [0.5, -0.5, 0.25, -0.25]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(POLICY)


def owner_of(tree: ast.Module, name: str) -> str:
    """Return the name of the first class that has a method of this name."""
    return next(
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and name in [getattr(part, "name", None) for part in node.body]
    )


def truth(tokenizer: Any, **columns: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the expected rows of a log: the tokens of its texts and its columns."""
    encode = tokenizer.encode
    rows = [
        {"prompt_ids": encode(prompt), "response_ids": encode(answer, add_special_tokens=False)}
        for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)
    ]
    return [
        {**row, **{name: values[number] for name, values in columns.items()}}
        for number, row in enumerate(rows)
    ]


def converted(source: Path) -> list[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        out = Path(folder, "out.parquet")
        rcdiag.convert(source, out, tokenizer=POLICY)
        rows, table = read(out)
        assert not table.policies
    return rows


@pytest.mark.parametrize("file", ["ppo/ray_trainer.py", "ppo/v1/trainer_base.py"])
def test_generations_of_verl(tmp_path, tokenizer, file):
    tree = module("verl", "0.9.1", f"verl/trainer/{file}")
    name, space = "_write_generations", {"os": os, "json": json, "np": np}
    write = getattr(bare_class(tree, owner_of(tree, name), [name], space), name)
    keys = [f"p{number // 2}_{number % 2}_0" for number in range(4)]
    extras = {"acc": np.array([True, False, True, False]), "uid": keys, "short": [1]}
    extras["pred"] = ["5", None, "6", "6"]
    for step in (9, 10):
        write(PROMPTS, ANSWERS, ["5", None, "6", "6"], REWARDS, extras, str(tmp_path), step)
    rows = converted(tmp_path)
    assert_rows(
        rows[4:],
        truth(
            tokenizer, reward=REWARDS, step=[10] * 4, group_id=["p0", "p0", "p1", "p1"],
            sample_id=keys,
        ),
    )  # fmt: skip
    assert [row["step"] for row in rows] == [9] * 4 + [10] * 4


def test_completions_of_trl(tmp_path, tokenizer):
    tree = module("trl", "1.16.0", "trl/trainer/grpo_trainer.py")

    class Trainer:
        def log(self, logs, start_time):
            pass

    space = {"pd": pd, "os": os, "torch": torch, "is_rich_available": lambda: False, "math": None}
    space |= {"strip_images_from_messages": lambda messages: messages}
    log = bare_class(tree, "GRPOTrainer", ["log"], space)
    trainer = type("Logged", (log, Trainer), {})()
    space["super"] = lambda: Trainer()
    (tmp_path / "completions").mkdir()
    trainer.model = SimpleNamespace(training=True)
    trainer._metrics = defaultdict(dict)
    trainer.accelerator = SimpleNamespace(is_main_process=True)
    trainer.log_completions = True
    trainer.args = SimpleNamespace(report_to=[], output_dir=str(tmp_path))
    trainer._logs = {
        "prompt": deque(PROMPTS), "completion": deque(ANSWERS), "advantages": deque(ADVANTAGES),
        "rewards": {"exact": deque(REWARDS)}, "extra": {"source": deque("abcd")}, "images": [],
    }  # fmt: skip
    for step in (5, 10):  # logged twice, generated once
        trainer.state = SimpleNamespace(global_step=step)
        trainer.log({})
    rows = converted(tmp_path)
    assert_rows(rows, truth(tokenizer, reward=REWARDS, advantage=ADVANTAGES, step=[5] * 4))


def test_trajectories_of_areal(tmp_path, tokenizer):
    path = "areal/infra/workflow_executor.py"
    tree = module("areal", "1.0.4", path)

    class Opened:
        def __init__(self, path, mode):
            self.stream = Path(path).open(mode)  # noqa: SIM115

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            self.stream.close()

        async def write(self, text):
            self.stream.write(text)

    async def makedirs(path, exist_ok):
        Path(path).mkdir(parents=True, exist_ok=exist_ok)

    files = SimpleNamespace(os=SimpleNamespace(makedirs=makedirs), open=Opened)
    space = {"os": os, "json": json, "aiofiles": files}
    space |= {"RTensor": SimpleNamespace(localize=lambda each: each)}
    dump = bare_class(tree, "WorkflowExecutor", ["_dump_trajectory"], space)()
    dump._get_dump_dir, dump._get_tokenizer = lambda is_eval: str(tmp_path), lambda: tokenizer
    expected = [row for row in truth(tokenizer, reward=REWARDS) if row["response_ids"]]
    for task, row in enumerate(expected):
        ids, size = row["prompt_ids"] + row["response_ids"], len(row["response_ids"])
        padded = torch.tensor([[*ids, 0, 0]])
        attention = torch.tensor([[1] * len(ids) + [0, 0]])
        mask = torch.tensor([[0] * len(row["prompt_ids"]) + [1] * size + [0, 0]])
        versions = torch.tensor([[-1] * len(row["prompt_ids"]) + [9 + task] * size + [-1, -1]])
        trajectory = {
            "input_ids": padded, "rewards": torch.tensor([row["reward"]]), "loss_mask": mask,
            "attention_mask": attention, "versions": versions,
        }  # fmt: skip
        assert asyncio.run(dump._dump_trajectory(trajectory, task, False)) == (True, "")
        row |= {"group_id": str(task), "policy_version": 9 + task}
    assert_rows(converted(tmp_path), expected)


def swift_writer(path: Path) -> Any:
    """Return ms-swift's own writer of JSON lines on a single process."""
    tree = module("ms-swift", "4.6.0", "swift/utils/utils.py")
    check = functions(tree, ["check_json_format"], {
        "torch": torch, "Sequence": Sequence, "Mapping": Mapping,
    }).check_json_format  # fmt: skip
    space = {
        "os": os, "json": json, "Queue": MagicMock(), "check_json_format": check,
        "is_master": lambda: True, "dist": None,
    }  # fmt: skip
    tree = module("ms-swift", "4.6.0", "swift/utils/io_utils.py")
    return functions(tree, ["JsonlWriter"], space).JsonlWriter(str(path))


def test_completions_of_ms_swift(tmp_path, tokenizer):
    tree = module("ms-swift", "4.6.0", "swift/rlhf_trainers/grpo_trainer.py")

    class Trainer:
        def log(self, *_):
            pass

    space = {"torch": torch, "version": version, "transformers": transformers, "super": Trainer}
    trainer = bare_class(tree, owner_of(tree, "log"), ["log"], space)()
    trainer.model, trainer._metrics = SimpleNamespace(training=True), defaultdict(dict)
    trainer.accelerator = SimpleNamespace(is_main_process=True)
    trainer.log_completions = True
    trainer.args = SimpleNamespace(report_to=[], log_entropy=False)
    trainer.jsonl_writer = swift_writer(tmp_path / "completions.jsonl")
    trainer._logs = {
        "prompt": deque(PROMPTS), "completion": deque(ANSWERS), "advantages": deque(ADVANTAGES),
        "rewards": {"Exact": deque(REWARDS)}, "solution": deque("5566"),
        "image": deque(),
    }  # fmt: skip
    for step in (9, 10):
        trainer._logs["completion"][1] = f" {step}"
        trainer.state = SimpleNamespace(global_step=step)
        trainer.log({})
    rows = converted(tmp_path)
    columns = {"reward": REWARDS, "advantage": ADVANTAGES}
    last = truth(tokenizer, **columns, step=[10] * 4)
    last[1]["response_ids"] = tokenizer.encode(" 10", add_special_tokens=False)
    assert_rows(rows[4:], last)
    assert [row["step"] for row in rows] == [9] * 4 + [10] * 4


def test_completions_of_ms_swift_on_ray(tmp_path, tokenizer):
    tree = module("ms-swift", "4.6.0", "swift/ray/megatron/base_trainer.py")
    names = ["_maybe_log_completions", "_decode_log_content"]
    writer = swift_writer(tmp_path / "completions.jsonl")
    space = {"os": os, "JsonlWriter": lambda path: writer, "List": list, "OnPolicySample": None}
    trainer = bare_class(tree, owner_of(tree, names[0]), names, space)()
    trainer.args = SimpleNamespace(log_completions=True, output_dir=str(tmp_path))
    trainer._format_log_prompt = lambda messages: messages[0]["content"]
    samples = [
        SimpleNamespace(
            messages=[
                {"role": "user", "content": prompt}, {"role": "assistant", "content": answer},
            ]
        )
        for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)
    ]  # fmt: skip
    for step in (9, 10):
        trainer._maybe_log_completions(samples, REWARDS, step)
    rows = converted(tmp_path)
    assert_rows(rows[4:], truth(tokenizer, reward=REWARDS, step=[10] * 4))
    assert [row["step"] for row in rows] == [9] * 4 + [10] * 4
