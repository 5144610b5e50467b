"""ROLL's sampled batches: a torch file in a buffer, log-probs of all tokens except the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rcdiag.errors import RcdiagError
from tests.table.readers.pickled import (
    Built,
    Named,
    consolidated,
    pickled,
    tensordict,
    torch_bytes,
    write,
)
from tests.table.readers.rollouts import PAD, Rollouts, assert_rows, only, read, rollouts

TOKENS = ("prompt_ids", "response_ids", "response_mask", "rollout_log_probs", "reward")


def tensors_of(batch: Rollouts, agentic: bool = False) -> dict[str, torch.Tensor]:
    rows = batch.rows
    for row in rows:
        prompt, response = len(row["prompt_ids"]), len(row["response_ids"])
        row["ids"] = row["prompt_ids"] + row["response_ids"]
        row["ones"], row["prompt"] = [1] * (prompt + response), [1] * prompt
        row["mask"] = [0] * prompt + row["response_mask"]
        row["shifted"] = [0.0] * (prompt - 1) + row["rollout_log_probs"]
        row["scores"] = [0.0] * (prompt + response - 1) + [row["reward"]]
    whole = Rollouts(rows, 0, 20)
    tensors = {
        "input_ids": whole.matrix("ids", torch.int64, fill=PAD),
        "attention_mask": whole.matrix("ones", torch.int64),
        "prompt_mask": whole.matrix("prompt", torch.int64),
        "response_mask": whole.matrix("mask", torch.bool if agentic else torch.int64),
        "infer_logprobs": Rollouts(rows, 0, 19).matrix("shifted", torch.float32),
    }
    if agentic:
        tensors["scores"] = whole.matrix("scores", torch.float32)
        return tensors
    return {
        **tensors,
        "prompts": batch.matrix("prompt_ids", torch.int64, fill=PAD, right=True),
        "responses": batch.matrix("response_ids", torch.int64, fill=PAD),
        "prompt_id": torch.arange(len(rows)) // 2,
        "scores": torch.tensor(batch.column("reward"), dtype=torch.float32),
    }


def write_batch(
    path: Path, tensors: dict[str, torch.Tensor], form: Any, values: Any = (), **meta: Any
) -> Path:
    data = torch_bytes(form(tensors))
    buffer = Built(Named("_io", "BytesIO"), (), (data, len(data), None))
    state = (buffer, dict(values), meta.pop("remote", None), meta)
    kind = Named("roll.distributed.scheduler.protocol", "DataProto")
    return write(path, pickled(Built(kind, (), state), 5))


@pytest.mark.parametrize("form", [tensordict, consolidated])
def test_every_cell_of_single_prompts_is_read(form, tmp_path):
    batches = {step: rollouts(6, seed=step) for step in (9, 10)}
    for step, batch in batches.items():
        path = tmp_path / "train" / f"step_{step:06d}.pkl"
        settings = {"temperature": 0.9, "top_p": 0.95, "top_k": 50}
        write_batch(path, tensors_of(batch), form, generation_config=settings)
    rows, table = read(tmp_path)
    assert_rows(rows, [row for b in batches.values() for row in only(b.rows, *TOKENS)])
    assert [row["step"] for row in rows] == [9] * 6 + [10] * 6
    assert [row["group_id"] for row in rows] == [f"{i // 6}-{i % 6 // 2}" for i in range(12)]
    assert {(r["temperature"], r["top_p"], r["top_k"]) for r in rows} == {(0.9, 0.95, 50)}
    assert any("shifted by one" in change for change in table.metadata["conversion"]["changes"])
    assert table.policies == ["rollout"]


def test_every_cell_of_an_agentic_batch_is_read(tmp_path):
    batch = rollouts(8)
    groups = np.array([5, 5, 5, 5, 7, 7, 7, 7], object)
    path = tmp_path / "step_000001.pkl"
    write_batch(path, tensors_of(batch, agentic=True), tensordict, {"group_ids": groups})
    rows, table = read(path)
    assert_rows(rows, only(batch.rows, *TOKENS))
    assert [row["group_id"] for row in rows] == ["0-5"] * 4 + ["0-7"] * 4
    assert "temperature" not in table.columns


def test_batches_of_evaluations_are_read_where_there_are_no_others(tmp_path):
    trained, evaluated = rollouts(4), rollouts(6, seed=1)
    for name, batch in (("train", trained), ("val", evaluated)):
        write_batch(tmp_path / name / "step_000001.pkl", tensors_of(batch), tensordict)
    rows, table = read(tmp_path)
    assert_rows(rows, only(trained.rows, *TOKENS))
    assert any("evaluations" in change for change in table.metadata["conversion"]["changes"])
    rows, _ = read(tmp_path / "val")
    assert_rows(rows, only(evaluated.rows, *TOKENS))


def test_a_batch_without_log_probs_has_none(tmp_path):
    batch = rollouts(4)
    tensors = tensors_of(batch)
    del tensors["infer_logprobs"]
    rows, table = read(write_batch(tmp_path / "step_000001.pkl", tensors, tensordict))
    assert table.policies == []
    assert_rows(rows, only(batch.rows, "response_ids", "response_mask"))


def test_a_batch_whose_tensors_are_elsewhere_is_refused(tmp_path):
    path = tmp_path / "step_000001.pkl"
    remote = Built(Named("roll.distributed.scheduler.remote_protocol", "RemoteBatch"), (), {})
    write_batch(path, tensors_of(rollouts(4)), tensordict, remote=remote)
    with pytest.raises(RcdiagError, match="object store") as caught:
        read(path)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["attention_mask"][1].__setitem__(0, 0), "row 1: attention_mask is not one"),
        (lambda t: t["prompt_mask"][1].fill_(1), "row 1: prompt_mask reaches beyond"),
        (lambda t: t["response_mask"][2].__setitem__(0, 1), "row 2: response_mask is not 0 at"),
        (lambda t: t["response_mask"][2].__setitem__(-1, 1), "row 2: response_mask is not 0 at"),
        (lambda t: t.update(infer_logprobs=torch.zeros(4, 20)), "one column less"),
        (lambda t: t.update(scores=torch.zeros(3)), "scores has 3 rows"),
        (lambda t: t["prompt_mask"][1].fill_(0), "without a prompt"),
        (lambda t: t.pop("prompt_mask"), "not laid out as ROLL writes it"),
    ],
)
def test_a_batch_of_another_layout_is_refused(change, message, tmp_path):
    tensors = tensors_of(rollouts(4))
    change(tensors)
    path = write_batch(tmp_path / "step_000001.pkl", tensors, tensordict)
    with pytest.raises(RcdiagError, match=message):
        read(path)


def test_experts_are_at_their_own_tokens(tmp_path):
    """ROLL's `routed_experts`, [rows, tokens, layers, top-k], have nothing at the last token."""
    batch = rollouts(4)
    tensors = tensors_of(batch)
    width = tensors["input_ids"].shape[1]
    experts = torch.arange(4 * width * 4).reshape(4, width, 2, 2).remainder(200) + 1
    lengths = tensors["attention_mask"].sum(1)
    for row, length in enumerate(lengths.tolist()):
        experts[row, length - 1 :] = 0
    tensors["routed_experts"] = experts.to(torch.uint8)
    rows, _ = read(write_batch(tmp_path / "step_000001.pkl", tensors, tensordict))
    for row, wanted, length in zip(rows, experts, lengths.tolist(), strict=True):
        first = len(row["prompt_ids"])
        of_tokens = wanted[first : length - 1].reshape(-1, 4).tolist()
        last = [[]] if row["response_ids"] else []
        assert row["rollout_routed_experts"] == [*of_tokens, *last]
